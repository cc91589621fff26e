"""When others go on that have to do with what the engine's steps have put out."""

from __future__ import annotations

import threading

import pytest

from ianvs_specdec.backends.batcher import Batcher
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.engine.loop import LATE
from ianvs_specdec.engine.meter import Meter
from ianvs_specdec.targets.registry import target_of
from tests.support.requests import PROMPTS, alone, engine_of, request_of
from tests.support.tiny import Guesser, tiny_model
from tests.support.watched import Watched


@pytest.fixture(scope="module")
def model():
    return tiny_model()


@pytest.mark.parametrize("drafting", [0.0, 2 * LATE], ids=["fast", "slow"])
def test_others_are_let_go_on_as_the_target_begins_to_compute_or_as_drafts_do_that_take_long(model, drafting):
    happened: list[str] = []

    class Told(Guesser):
        def propose(self, context, budget):
            happened.append("draft")
            return super().propose(context, budget)

    class Computes(Watched):
        def step(self, parts):
            happened.append("compute")
            return super().step(parts)

    class Timed(Meter):
        draft = property(lambda _: drafting, lambda *_: None)

    target = Computes(target_of(model))
    ids = alone(target, PROMPTS[0])
    happened.clear()
    engine = engine_of(target, meter=Timed())
    engine.add(request_of(target, PROMPTS[0], drafter=Told(ids)))
    while engine.busy:
        engine.step(lambda: happened.append("others"))
    once, at_once = ["draft", "others", "compute"], ["others"] * (drafting > 0)
    assert happened[: 2 * len(once)] == (at_once + once[1:] + 2 * (at_once + once))[: 2 * len(once)]


def test_ends_are_told_as_the_target_begins_to_compute_and_the_last_one_as_there_is_nothing_more_to_do(model):
    happened: list[str] = []

    class Computes(Watched):
        def step(self, parts):
            happened.append("compute")
            return super().step(parts)

    target = Computes(target_of(model))
    ended = threading.Event()
    batcher = Batcher(engine_of(target, "fixed:0"), 1)
    batcher.on_compute_start = lambda: happened.append("others")
    with batcher._wake:
        for name, tokens in (("short", 3), ("long", 9)):
            request = request_of(target, PROMPTS[0], Sampling(max_tokens=tokens))
            batcher.submit(request, lambda name=name: happened.append(name) or (name == "long" and ended.set()))
    assert ended.wait(60)
    batcher.close()
    short, last = happened.index("short"), happened.index("long")
    assert happened[short - 2 : short + 2] == ["compute", "others", "short", "compute"]
    assert happened[last - 2 : last] == ["compute", "others"]
