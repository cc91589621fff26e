"""What lengths and traces are told of each step: its times, on a clock that only target and drafter move; its nodes."""

from __future__ import annotations

import time

import pytest

from ianvs_specdec import drafters, lengths
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.engine import Drafter, TokenTree, decode
from ianvs_specdec.targets.huggingface import HuggingFaceTarget
from tests.support.tiny import tiny_model


def test_scouts_are_verified_but_not_drafted():
    drafter = drafters.create("lookahead", {"start": "official", "level": 4, "window": 3})
    trees = []
    sampling, length = Sampling(max_tokens=12), lengths.create("full")
    target = HuggingFaceTarget(tiny_model())
    trace = decode(target, drafter, length, [5, 9, 14, 9], sampling, eos_ids=[], trace_trees=trees).trace
    assert any(tree.scouts for tree in trees)
    assert [step.verified for step in trace.steps] == [len(tree) for tree in trees]
    assert [step.drafted for step in trace.steps] == [len(tree) - 1 - len(tree.scouts) for tree in trees]


@pytest.mark.parametrize("tokens", [5, 7, 8])
def test_right_drafts_behind_the_last_token_are_not_accepted(tokens):
    step, emitted = the_only_step(max_tokens=tokens)
    assert (step.drafted, step.accepted, step.emitted) == (12, tokens - 1, tokens - 1)
    assert len(emitted) == tokens


def test_right_drafts_behind_a_stop_are_not_accepted():
    _, free = the_only_step(max_tokens=12)
    end = next(place for place, token in enumerate(free) if place > 2 and token not in free[:place])
    step, emitted = the_only_step(max_tokens=30, eos_ids=[free[end]])
    assert emitted == free[: end + 1]
    assert (step.drafted, step.accepted, step.emitted) == (12, end, end)


def test_a_trace_has_the_seconds_of_its_drafts():
    class Slow(Right):
        calls = 0

        def propose(self, context, budget):
            self.calls += 1
            time.sleep(0.01)
            return super().propose(context, budget)

    target, slow, sampling = HuggingFaceTarget(tiny_model()), Slow([1] * 20), Sampling(max_tokens=5)
    trace = decode(target, slow, lengths.create("fixed:2"), [5, 9], sampling, eos_ids=[]).trace
    assert 0.01 * slow.calls <= trace.drafting <= trace.latency
    alone = drafters.create("autoregressive")
    assert decode(target, alone, lengths.create("fixed:0"), [5, 9], sampling, eos_ids=[]).trace.drafting == 0.0


def the_only_step(max_tokens, eos_ids=()):
    """The step in which a draft of 12 right tokens is verified, and the output."""
    prompt, target = [5, 9, 14, 3, 22, 9, 14, 31], HuggingFaceTarget(tiny_model())
    alone = drafters.create("autoregressive")
    free = decode(target, alone, lengths.create("fixed:0"), prompt, Sampling(max_tokens=30), eos_ids=[]).token_ids
    limited = Sampling(max_tokens=max_tokens)
    result = decode(target, Right(free), lengths.create("fixed:12"), prompt, limited, eos_ids=eos_ids)
    (step,) = result.trace.steps
    return step, result.token_ids


class Right(Drafter):
    """Drafts what the target is known to say."""

    def __init__(self, continuation):
        self._continuation = continuation

    def propose(self, context, budget):
        done = len(context.tokens) - context.prompt_tokens
        return TokenTree.chain(context.tokens[-1], self._continuation[done : done + budget])
