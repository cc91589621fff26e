"""Lookahead decoding against the recorded steps of the published implementation, and what our own start makes of it."""

from __future__ import annotations

import json

import pytest

from ianvs_specdec import drafters
from ianvs_specdec.common.types import Sampling
from tests.support.requests import engine_of, request_of, results
from tests.support.slow_cases import slow_unless
from tests.support.torch_path import torch_target

TOKENS = 128


@pytest.fixture(scope="module")
def target(reference_model):
    return torch_target(reference_model)


def decoded(target, prompts, **settings):
    """For each prompt, all at once: the result, and the trees that were verified."""
    drafter, trees = drafters.create("lookahead", settings), [[] for _ in prompts]
    drafter.prepare(target)
    requests = [
        request_of(target, prompt, Sampling(max_tokens=TOKENS), drafter.fork(), trace_trees=own)
        for prompt, own in zip(prompts, trees, strict=True)
    ]
    return zip(results(engine_of(target, "full"), *requests), trees, strict=True)


def traces(shared, level, window, guess):
    path = shared / "reference" / "traces" / f"lade002_L{level}_W{window}_G{guess}.json"
    return json.loads(path.read_text())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("level", "window", "guess", "requests"),
    slow_unless([(5, 7, 7, 2), (7, 20, 20, 1), (5, 7, 7, None), (7, 20, 20, None)], lambda case: case[3] is not None),
)
def test_every_step_is_the_official_one(target, shared, level, window, guess, requests):
    rows = traces(shared, level, window, guess)[:requests]
    settings = {"level": level, "window": window, "guess": guess, "start": "official"}
    found = decoded(target, [recorded["prompt"] for recorded in rows], **settings)
    for recorded, (result, trees) in zip(rows, found, strict=True):
        assert recorded["output"][len(recorded["prompt"]) :][:TOKENS] == result.token_ids
        emitted = [step.emitted for step in result.trace.steps]
        assert emitted[:-1] == recorded["emitted"][: len(emitted) - 1]
        for tree, step in zip(trees, recorded["steps"], strict=False):
            assert dict(tree.notes) == step
            assert not any(node in tree.scouts for children in tree.children for node in children)


@pytest.mark.slow
def test_our_start_accepts_more_with_the_same_window(target, shared):
    recorded = traces(shared, 7, 20, 20)
    steps = tokens = 0
    found = decoded(target, [row["prompt"] for row in recorded], level=7, window=20, guess=20, start="prompt")
    for row, (result, _) in zip(recorded, found, strict=True):
        assert result.token_ids == row["output"][len(row["prompt"]) :][:TOKENS]
        steps, tokens = steps + len(result.trace.steps), tokens + len(result.token_ids)
    official = sum(sum(row["emitted"]) for row in recorded) / sum(len(row["emitted"]) for row in recorded)
    assert tokens / steps >= max(3.4, official)
