"""Cost emulation: the engine's own steps last as long as the table says, what it writes stays the same."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from ianvs_specdec import drafters, lengths
from ianvs_specdec.backends.emulation import Emulation, scale_for
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.engine.length import FinishedStep
from ianvs_specdec.engine.loop import Engine
from ianvs_specdec.engine.request import Request
from ianvs_specdec.lengths.fixed import Fixed
from ianvs_specdec.targets.registry import create_target
from tests.support.cost_tables import LEVEL, simple
from tests.support.tiny import tiny_model

PROMPT_IDS = [5, 6, 7, 5, 6, 7, 5, 6, 7]
ONE_ROW: Any = SimpleNamespace(reading=[], decoding=[None], rows=1, context=0, prompt_rows=0, outputs=[None])


class Told(Fixed):
    """Keeps what it was told, and how many tokens the decoding sequences held before the step."""

    def __init__(self, tokens: int) -> None:
        super().__init__(tokens)
        self.told: list[tuple[FinishedStep, int]] = []

    def learn(self, finished: FinishedStep) -> None:
        self.told.append(
            (finished, sum(request.stats.context_tokens - request.step.emitted for request in finished.requests))
        )


class Counted:
    """A clock that moves only when somebody waits, or is told to."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def until(self, moment: float) -> None:
        assert moment >= self.time
        self.time = moment


@pytest.fixture(scope="module")
def target():
    return create_target(tiny_model())


def served(target, meter, length, count=2, on_tokens=None):
    engine = Engine(target, length, timer=meter)
    requests = [
        Request(
            target,
            drafters.create("prompt_lookup"),
            PROMPT_IDS,
            Sampling(max_tokens=12),
            eos_ids=(),
            on_tokens=on_tokens,
        )
        for _ in range(count)
    ]
    for request in requests:
        engine.add(request)
    while engine.busy:
        engine.step()
    return [request.result().token_ids for request in requests]


def test_each_step_lasts_as_long_as_the_table_says_and_writes_what_it_wrote(target):
    clock, length, scale = Counted(), Told(3), 7.0
    table = simple(request=0.001, attention=1e-5, shared=0.002)
    written = served(target, Emulation(table, scale, clock), length)
    assert written == served(target, None, lengths.create("fixed:3"))
    assert len(length.told) > 4
    for finished, context in length.told:
        assert finished.context == context
        # Here a prompt takes as long after any context.
        seconds = table.step_seconds(finished.rows, context, len(finished.requests), finished.prompt_rows, 0)
        assert finished.verify_seconds == pytest.approx(scale * seconds)
        drafted = [request.step.drafted for request in finished.requests]
        assert finished.draft_seconds == pytest.approx(scale * table.draft_seconds(drafted) if drafted else 0.0)
    assert any(finished.draft_seconds >= scale * LEVEL for finished, _ in length.told)
    total = sum(finished.draft_seconds + finished.verify_seconds for finished, _ in length.told)
    assert clock.time == pytest.approx(total), "no time passes besides"


def test_a_step_that_this_machine_is_too_slow_for_is_counted_and_told(caplog):
    clock = Counted()
    emulation = Emulation(simple(), 1.0, clock)
    for late in (0.0, 0.5, 0.0):
        emulation.begin()
        clock.time += late
        emulation.add("compute", 0.0, ONE_ROW)
        emulation.end(busy=True)
    assert emulation.progress() == {**emulation.describe(), "steps": 3, "overruns": 1}
    assert emulation.late == pytest.approx(0.49)
    assert clock.time == pytest.approx(0.01 + 0.5 + 0.01), "the times after it count from its end"
    with caplog.at_level(logging.WARNING):
        emulation.log_overruns()
    assert "1 of 3 steps took longer than on a stated one" in caplog.text


def test_what_the_engine_does_between_its_steps_is_within_the_next_and_idling_is_not():
    clock = Counted()
    emulation = Emulation(simple(), 1.0, clock)

    def step(busy: bool, between: float) -> None:
        emulation.begin()
        emulation.add("compute", 0.0, ONE_ROW)
        clock.time += between
        emulation.end(busy=busy)

    step(busy=True, between=0.004)
    step(busy=False, between=0.0)
    assert clock.time == pytest.approx(0.02)
    clock.time += 5.0
    step(busy=True, between=0.0)
    assert (clock.time, emulation.overruns) == (pytest.approx(5.03), 0)


def test_the_scale_makes_this_machine_faster_at_all_points():
    theirs = simple()
    slower = simple(request=0.05)
    scale = scale_for(theirs, slower, at_once=8)
    for rows, requests in ((1, 1), (8, 8), (88, 8)):
        for context in (0, 1000):
            own = slower.step_seconds(rows, context, requests)
            assert own < scale * theirs.step_seconds(rows, context, requests)
    assert f"{scale:.0e}"[0] in "125", "back ends of one job come to the same"
    # Of 8 rows, 0.017 s here and 0.4 s more there: a step of fewer rows has fewer requests.
    assert scale == 50.0
    assert scale_for(theirs, theirs, at_once=8) == 2.0, "with a margin"
