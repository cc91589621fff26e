"""What lengths and traces are told of each step: its times, on a clock that only target and drafter move; its nodes."""

from __future__ import annotations

import itertools
import time

import pytest

from ianvs_specdec import drafters, lengths
from ianvs_specdec.decoding import HuggingFaceTarget, decode
from ianvs_specdec.types import Sampling
from tests.support.tiny import Guesser, tiny_model


class Watching:
    """Speculates with four tokens; keeps the statistics that it was shown."""

    confidence = 0.0

    def budget(self, stats):
        self.stats = stats
        return 4


def test_verification_counts_with_its_commit_and_drafting_with_what_is_learned_from_the_step(monkeypatch):
    now = 0.0

    def slowed(method, seconds):
        def call(*args, **kwargs):
            nonlocal now
            now += seconds
            return method(*args, **kwargs)

        return call

    target, drafter, watching = HuggingFaceTarget(tiny_model()), Guesser([]), Watching()
    for thing, name, seconds in (
        (target, "prefill", 1000.0),
        (drafter, "begin", 500.0),
        (drafter, "propose", 100.0),
        (target, "verify", 30.0),
        (target, "commit", 4.0),
        (drafter, "observe", 2.0),
    ):
        monkeypatch.setattr(thing, name, slowed(getattr(thing, name), seconds))
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    trace = decode(target, drafter, watching, [5, 9, 14], Sampling(max_tokens=6), eos_ids=[]).trace
    learned = len(trace.steps) - 1
    assert learned > 1
    assert watching.stats.verify_seconds == [34.0] * learned
    assert watching.stats.draft_seconds == [102.0] * learned
    ends = itertools.accumulate([136.0] * learned, initial=1000.0 + 500.0 + 130.0)
    assert [seconds for seconds, _ in trace.chunks] == pytest.approx([1000.0, *ends])


def test_scouts_are_verified_but_not_drafted():
    drafter = drafters.create("lookahead", {"start": "official", "level": 4, "window": 3})
    trees = []
    sampling, length = Sampling(max_tokens=12), lengths.create("full")
    target = HuggingFaceTarget(tiny_model())
    trace = decode(target, drafter, length, [5, 9, 14, 9], sampling, eos_ids=[], trace_trees=trees).trace
    assert any(tree.scouts for tree in trees)
    assert [step.verified for step in trace.steps] == [len(tree) for tree in trees]
    assert [step.drafted for step in trace.steps] == [len(tree) - 1 - len(tree.scouts) for tree in trees]
