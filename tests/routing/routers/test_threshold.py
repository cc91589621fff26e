"""The threshold of every router: a score that reaches it goes to the cloud, and the next smaller one does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ianvs_specdec.common.types import Query
from ianvs_specdec.records.response import Response
from ianvs_specdec.routing.routers.base import Router
from ianvs_specdec.routing.routers.budget import BudgetRouter
from ianvs_specdec.routing.routers.cascade import CascadeRouter
from ianvs_specdec.routing.routers.latency import LatencyRouter
from ianvs_specdec.routing.routers.learned import LearnedRouter
from ianvs_specdec.routing.routers.lifelong import LifelongRouter
from ianvs_specdec.routing.routers.privacy import PrivacyRouter
from ianvs_specdec.routing.routers.random_router import RandomRouter
from ianvs_specdec.routing.routers.resources import ResourceRouter
from tests.routing.routers.lifelong_stream import row

Build = Callable[[float], Router]


class Quarter(Router):
    """Finds every query hard by a quarter."""

    def score(self, query: Query) -> float:
        return 0.25


def answered() -> Response:
    """A row to which the edge has given an answer of a few probabilities."""
    turn = {"completion": "B", "trace": {"confidence": ((-0.1, 0.2, 0.9), (-0.7, 0.5, 0.3))}}
    response = Response({"turns": [turn], "completion": "B"})
    response.row = row(1)
    return response


CONSTRAINED: dict[str, Build] = {
    "budget": lambda threshold: BudgetRouter(Quarter(threshold), cloud_share=1.0),
    "latency": lambda threshold: LatencyRouter(Quarter(threshold), slo_latency=1.0),
    "privacy": lambda threshold: PrivacyRouter(Quarter(threshold)),
    "resources": lambda threshold: ResourceRouter(Quarter(threshold), max_cpu=90, reader=lambda: {"cpu": 1.0}),
}
ROUTERS: dict[str, Build] = {
    "own": Quarter,
    "random": lambda threshold: RandomRouter(1.0 - threshold),
    "cascade": lambda threshold: CascadeRouter("min_probability", threshold),
    **CONSTRAINED,
}


def decided_at(build: Build, data: Callable[[], Any]) -> list[bool]:
    """What is decided with the score as the threshold, with the next larger number and with the next smaller one."""
    score = build(0.5).score_row(data())
    assert 0 < score < 1
    # A ratio is kept as what it leaves of 1, which holds no more digits than this.
    step = 2.0**-52
    return [build(threshold)(data()) for threshold in (score, score + step, score - step)]


@pytest.mark.parametrize("name", ROUTERS)
def test_at_its_threshold_a_query_goes_to_the_cloud(name: str) -> None:
    data = answered if name == "cascade" else lambda: row(1)
    assert decided_at(ROUTERS[name], data) == [True, False, True]


@pytest.mark.parametrize("name", ["learned", "lifelong"])
def test_at_its_threshold_a_query_goes_to_the_cloud_from_a_trained_router(name: str, path: str) -> None:
    kinds: dict[str, Build] = {
        "learned": lambda threshold: LearnedRouter(path, threshold),
        "lifelong": lambda threshold: LifelongRouter(path, threshold, explore=0.0),
    }
    assert decided_at(kinds[name], lambda: row(1)) == [True, False, True]
