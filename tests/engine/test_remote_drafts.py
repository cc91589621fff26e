"""Drafts that come from elsewhere: their requests wait for them, and nobody waits for these requests."""

from __future__ import annotations

import pytest

from ianvs_specdec.engine import Drafter, TokenTree
from ianvs_specdec.targets.registry import target_of
from tests.support.requests import PROMPTS, alone, engine_of, request_of
from tests.support.tiny import tiny_model


class Elsewhere(Drafter):
    """Has a draft when it is told that there is one."""

    remote = True

    def __init__(self):
        self.ready = False

    def propose(self, context, budget):
        self.ready = False
        return TokenTree.chain(context.tokens[-1], [5])


@pytest.fixture(scope="module")
def target():
    return target_of(tiny_model())


def test_a_request_without_a_draft_waits_and_others_do_not(target):
    engine, far = engine_of(target), request_of(target, PROMPTS[0], drafter=Elsewhere())
    near = request_of(target, PROMPTS[2])
    engine.add(far)
    engine.add(near)
    while not near.ended:
        assert not engine.idle
        engine.step()
    assert near.result().token_ids == alone(target, PROMPTS[2])
    assert (engine.idle, engine.busy) == (True, True)
    before = engine.occupancy.done.steps
    assert engine.step() == []
    assert engine.occupancy.done.steps == before
    while not far.ended:
        far.drafter.ready = True
        assert not engine.idle
        engine.step()
    assert far.result().token_ids == alone(target, PROMPTS[0])
    assert (far.result().trace.drafting, near.result().trace.drafting is None) == (None, False)
    engine.step()
    assert (engine.idle, engine.busy) == (True, False)


def test_a_waiting_request_that_is_cancelled_is_something_to_do(target):
    engine, far = engine_of(target), request_of(target, PROMPTS[0], drafter=Elsewhere())
    engine.add(far)
    while not engine.idle:
        engine.step()
    far.cancel()
    assert not engine.idle
    assert engine.step() == [far]


def test_who_waits_for_room_is_something_to_do_once_there_is_some(target):
    engine = engine_of(target, at_once=1)
    first, second = (request_of(target, prompt, drafter=Elsewhere()) for prompt in PROMPTS[:2])
    engine.add(first)
    engine.add(second)
    while not engine.idle:
        engine.step()
    assert not second.opened
    while not first.ended:
        first.drafter.ready = True
        engine.step()
    assert not second.opened
    assert not engine.idle
    engine.step()
    assert second.opened
