"""Who is let in: those for whom there is memory, first come, first served."""

from __future__ import annotations

import pytest

from ianvs_specdec.common.types import Sampling
from ianvs_specdec.engine import ContextWindowError, TokenTree
from ianvs_specdec.engine.memory import held
from tests.support.one_sequence import OneSequence
from tests.support.requests import KINDS, PROMPTS, alone, engine_of, request_of, run, target_of_kind
from tests.support.tiny import tiny_model
from tests.support.watched import Watched


@pytest.fixture(scope="module")
def model():
    return tiny_model()


@pytest.fixture(params=KINDS)
def target(request, model):
    return Watched(target_of_kind(request.param, model))


def test_a_request_that_never_fits_is_refused_and_others_wait_until_there_is_room(target):
    small = [request_of(target, PROMPTS[0]) for _ in range(5)]
    room = 2 * target.memory(len(PROMPTS[0]) + 20)
    large = request_of(target, PROMPTS[0], Sampling(max_tokens=1900))
    assert target.memory(large.positions) > room
    run(engine_of(target, memory=room), *small[:3], large, *small[3:])
    with pytest.raises(ContextWindowError, match=r"1908 tokens.*take .* MB.*lower max_tokens"):
        large.result()
    expected = alone(target, PROMPTS[0])
    assert [request.result().token_ids for request in small] == [expected] * 5
    assert (target.most, target.open_now) == (2, [])


@pytest.mark.parametrize("name", ["fused", "transformers"])
@pytest.mark.parametrize("tokens", [3, 300, 700])
def test_a_sequence_takes_no_more_than_is_said(model, name, tokens):
    target = target_of_kind(name, model)
    sequence = OneSequence(target)
    sequence.prefill([3 + i % 50 for i in range(tokens)])
    for _ in range(2):
        sequence.verify(TokenTree.chain(5, [6] * 9))
        sequence.commit(range(10))
    assert 0.3 * target.memory(tokens + 20) < held(sequence, apart=[target]) <= target.memory(tokens + 20)


def test_first_come_first_served(target):
    """A smaller one does not overtake what waits for room."""
    began = []
    # When the first one ends there is room for the fourth, and none for the third.
    sampling = [Sampling(max_tokens=n) for n in (2, 12, 600, 5, 5)]
    requests = [
        request_of(target, PROMPTS[0], each, on_tokens=lambda _, n=n: n in began or began.append(n), stop=_after_four)
        for n, each in enumerate(sampling)
    ]
    run(engine_of(target, memory=target.memory(620)), *requests)
    assert began == [0, 1, 2, 3, 4]
    assert target.most == 2
    began.clear()
    requests = [
        request_of(target, PROMPTS[0], on_tokens=lambda _, n=n: n in began or began.append(n)) for n in range(6)
    ]
    target.most = 0
    run(engine_of(target, at_once=2), *requests)
    assert (began, target.most) == ([0, 1, 2, 3, 4, 5], 2)


def _after_four(ids):
    return 4 if len(ids) > 3 else None
