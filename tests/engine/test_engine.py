"""Many requests over one target: each writes what it writes alone, whoever joins and whatever they read."""

from __future__ import annotations

import time

import pytest

from ianvs_specdec import drafters
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.engine.contracts import PromptChunk
from ianvs_specdec.targets.huggingface import HuggingFaceTarget
from ianvs_specdec.targets.registry import create_target
from tests.support.requests import (
    COUPLED,
    GREEDY,
    KINDS,
    PROMPTS,
    RNG,
    alone,
    engine_of,
    request_of,
    run,
    target_of_kind,
)
from tests.support.slow_cases import slow_unless
from tests.support.targets import RecordingTarget
from tests.support.tiny import VOCABULARY, Guesser, tiny_model


@pytest.fixture(scope="module")
def model():
    return tiny_model()


@pytest.fixture(params=KINDS)
def target(request, model):
    return RecordingTarget(target_of_kind(request.param, model))


@pytest.mark.parametrize("sampling", [GREEDY, COUPLED], ids=["greedy", "coupled"])
def test_many_at_once_write_what_each_writes_alone(target, sampling):
    expected = [alone(target, prompt, sampling) for prompt in PROMPTS]
    requests = [
        request_of(target, prompt, sampling, drafter)
        for prompt, ids in zip(PROMPTS, expected, strict=True)
        for drafter in (drafters.create("autoregressive"), None, Guesser(ids))
    ]
    over = run(engine_of(target), *requests)
    assert [request.result().token_ids for request in requests] == [ids for ids in expected for _ in range(3)]
    assert {id(request) for request in over} == {id(request) for request in requests}
    assert (target.most, target.open_now) == (len(requests), [])


OTHERS = ("phi3-longrope", "mamba", "falcon-alibi", "gpt-without-cache", "mistral-sliding", "jamba-hybrid")


@pytest.mark.parametrize("name", slow_unless(OTHERS, lambda name: name in OTHERS[:4]))
def test_states_of_other_kinds_are_kept_apart_as_well(name):
    target = RecordingTarget(create_target(tiny_model(name)))
    expected = [alone(target, prompt) for prompt in PROMPTS[:3]]
    requests = [
        request_of(target, prompt, drafter=Guesser(ids)) for prompt, ids in zip(PROMPTS, expected, strict=False)
    ]
    run(engine_of(target), *requests)
    assert [request.result().token_ids for request in requests] == expected
    assert target.open_now == []


def test_a_request_may_join_while_others_decode(target):
    expected = [alone(target, prompt) for prompt in PROMPTS]
    engine, requests = engine_of(target), []
    for prompt in PROMPTS:
        requests.append(request_of(target, prompt))
        engine.add(requests[-1])
        for _ in range(3):
            engine.step()
    run(engine)
    assert [request.result().token_ids for request in requests] == expected


def sizes(step):
    """How many tokens of prompts, piece by piece, and how many trees one step computed."""
    prompts = [len(piece.tokens) for piece in step if isinstance(piece, PromptChunk)]
    return prompts, len(step) - len(prompts)


@pytest.mark.parametrize("kind", KINDS)
def test_a_long_prompt_is_read_in_pieces_while_others_go_on(model, kind):
    target = RecordingTarget(target_of_kind(kind, model), prompt_rows=8)
    long = [RNG.randrange(3, VOCABULARY) for _ in range(37)]
    expected = [alone(target, PROMPTS[1]), alone(target, long)]
    first, second = (request_of(target, prompt) for prompt in (PROMPTS[1], long))
    engine = engine_of(target, "fixed:0")
    engine.add(first)
    engine.step()
    target.steps.clear()
    run(engine, second)
    assert [sizes(step) for step in target.steps[:6]] == [*[([8], 1)] * 4, ([5], 1), ([], 2)]
    assert [request.result().token_ids for request in (first, second)] == expected


def test_prompts_take_turns_and_short_ones_share_a_step(model):
    target = RecordingTarget(create_target(model), prompt_rows=8)
    longer, shorter = PROMPTS[2][:20], PROMPTS[4][:17]
    expected = [alone(target, prompt) for prompt in (longer, shorter, [7], [8, 9], [5, 6, 7])]
    engine = engine_of(target, "fixed:0")
    requests = [request_of(target, prompt) for prompt in (longer, shorter, [7], [8, 9], [5, 6, 7])]
    target.steps.clear()
    run(engine, *requests)
    read = [list(piece.tokens) for step in target.steps for piece in step if isinstance(piece, PromptChunk)]
    # Each of the long ones waits for no more than a piece of the others; the short ones are one piece together.
    assert read[:5] == [longer[:8], shorter[:8], [7], [8, 9], [5, 6, 7]]
    assert sizes(target.steps[2])[0] == [1, 2, 3]
    assert all(sum(sizes(step)[0]) <= 8 for step in target.steps)
    assert [request.result().token_ids for request in requests] == expected


def test_times_are_those_of_the_whole_step(model, monkeypatch):
    """On a clock that only the target moves, by a second for each tree: a request is told what all in its step took,
    and it waits from the moment it was made."""

    now = 0.0

    def step(parts, compute=HuggingFaceTarget.step):
        nonlocal now
        now += len(parts)
        return compute(target, parts)

    target = HuggingFaceTarget(model)
    monkeypatch.setattr(target, "step", step)
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    requests = [request_of(target, PROMPTS[0], Sampling(max_tokens=n)) for n in (4, 4, 3)]
    engine, finished = engine_of(target, "fixed:0", max_batch_size=2), []
    monkeypatch.setattr(engine._length, "learn", finished.append)
    run(engine, *requests)
    first, second, third = (request.result().trace.chunks for request in requests)
    assert [seconds for seconds, _ in first] == [1.0, 3.0, 5.0, 7.0]
    assert [seconds for seconds, _ in second] == [3.0, 5.0, 7.0, 9.0]
    assert [(step.verify_seconds, len(step.requests), step.prompt_rows) for step in finished[2:4]] == [(2.0, 2, 0)] * 2
    assert [seconds for seconds, _ in third] == [9.0, 10.0, 11.0]
