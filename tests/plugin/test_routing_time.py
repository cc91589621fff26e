"""A router's time is measured once: with replayed answers it is that of when they were made."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from ianvs_specdec.common.types import Query
from ianvs_specdec.report.metrics import METRICS
from ianvs_specdec.routing.routers.base import Router
from tests.support.edge import Start, edge, row


class Slow(Router):
    """Takes so many seconds for a decision."""

    def __init__(self, seconds: float = 0.0, threshold: float = 0.5) -> None:
        super().__init__(threshold)
        self.seconds = seconds

    def score(self, query: Query) -> float:
        time.sleep(_pause[0])
        return 0.25


_pause = [0.0]


def overhead(model: Any, router: Router, data: dict[str, Any], pause: float = 0.0) -> float:
    """The seconds that the response to a row tells of the router."""
    _pause[0] = pause
    router(data)
    seconds = model.predict(data)["routing"]["seconds"]
    assert isinstance(seconds, float)
    return seconds


def test_a_replayed_answer_keeps_the_time_of_its_routing(job: Path, tiny_model: Path, new_run: Start) -> None:
    first = overhead(edge(tiny_model), Slow(), row("x"), pause=0.02)
    assert first > 0.02
    new_run(fresh=False)
    assert overhead(edge(tiny_model), Slow(), row("x")) == first
    assert overhead(edge(tiny_model), Slow(1.0), row("x")) < first, "another router's time is its own"
    assert overhead(edge(tiny_model), Slow(), row("y")) < first, "a new answer has a new time"


def test_the_same_router_before_another_back_end_has_its_own_time(job: Path, tiny_model: Path, new_run: Start) -> None:
    names = ("autoregressive", "PromptLookup")
    first = [overhead(edge(tiny_model, backend=name), Slow(), row("x"), pause=0.01) for name in names]
    new_run(fresh=False)
    assert [overhead(edge(tiny_model, backend=name), Slow(), row("x")) for name in names] == first


def test_answers_that_are_asked_for_anew_are_routed_anew(job: Path, tiny_model: Path, new_run: Start) -> None:
    first = overhead(edge(tiny_model), Slow(), row("x"), pause=0.02)
    new_run(fresh=True)
    again = overhead(edge(tiny_model), Slow(), row("x"))
    assert again < first
    new_run(fresh=False)
    assert overhead(edge(tiny_model), Slow(), row("x"), pause=0.02) == again, "the last measurement counts"


def test_a_router_that_looks_at_the_answer_keeps_its_time(job: Path, tiny_model: Path, new_run: Start) -> None:
    _pause[0] = 0.02
    response = edge(tiny_model).predict(row("x"))
    Slow()(response)
    first = response["routing"]["seconds"]
    new_run(fresh=False)
    _pause[0] = 0.0
    again = edge(tiny_model).predict(row("x"))
    Slow()(again)
    assert again["routing"]["seconds"] == first
    assert METRICS["Routing Overhead"](["B"], [[False, again, again, None]]) == float(f"{first:.6g}")
