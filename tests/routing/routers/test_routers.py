"""RandomRouter, OracleRouter, thresholds, and the record of decisions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Query
from ianvs_specdec.routing.routers import OracleRouter, RandomRouter
from ianvs_specdec.routing.routers.base import Decision, Router
from ianvs_specdec.routing.routers.learned import LearnedRouter
from ianvs_specdec.routing.routers.lifelong import LifelongRouter
from ianvs_specdec.routing.routers.privacy import PrivacyRouter
from tests.routing.routers.lifelong_stream import row


def rows(count: int = 400) -> list[dict[str, Any]]:
    return [{"query": f"question {number}", "gold": "B", "index": number} for number in range(count)]


@pytest.mark.parametrize("ratio", [0, 0.25, 0.5, 1])
def test_random_router_sends_its_share(ratio: float) -> None:
    share = sum(RandomRouter(ratio)(row) for row in rows()) / 400
    assert share == ratio if ratio in (0, 1) else abs(share - ratio) < 0.1


def test_random_router_depends_on_seed_and_query_alone() -> None:
    forward = [RandomRouter()(row) for row in rows()]
    router = RandomRouter()
    assert [router(row) for row in reversed(rows())] == forward[::-1]
    assert [RandomRouter(seed=1)(row) for row in rows()] != forward


class Waiting(Router):
    """Waits 1000 seconds for a model."""

    def score(self, query: Query) -> float:
        return 0.5

    def decide(self, data: Any) -> Decision:
        return Decision(0.5, False, "why", {"more": 1}, waited=1000.0)


def test_waiting_is_no_overhead_and_details_are_recorded() -> None:
    row = rows(1)[0]
    assert not Waiting()(row)
    assert row["routing"].pop("seconds") == pytest.approx(-1000, abs=500)
    assert row["routing"] == {"router": "Waiting", "score": 0.5, "hard": False, "reason": "why", "more": 1}


@pytest.mark.parametrize("threshold", [-0.01, 1.01, True, "half", float("nan")])
def test_a_threshold_is_a_number_from_0_to_1(threshold: Any) -> None:
    assert Waiting(0).threshold == 0.0
    assert Waiting(1).threshold == 1.0
    with pytest.raises(UserError, match="threshold must be a number from 0 to 1") as error:
        Waiting(threshold)
    assert error.value.key == "threshold"


class Model:
    def __init__(self, answer: str) -> None:
        self.answer = answer

    def predict(self, data: Any, **_: Any) -> dict[str, Any]:
        return {"turns": [{"completion": self.answer}]}

    inference = predict


@pytest.mark.parametrize(("edge", "cloud", "hard"), [("A", "B", True), ("B", "B", False), ("A", "C", False)])
def test_oracle_sends_what_only_the_cloud_gets_right(edge: str, cloud: str, hard: bool) -> None:
    row = rows(1)[0]
    assert OracleRouter(edgemodel=Model(edge), cloudmodel=Model(cloud))(row) is hard
    assert row["routing"]["seconds"] is None


def test_oracle_compares_scores_of_open_ended_answers() -> None:
    oracle = OracleRouter(edgemodel=Model("something else"), cloudmodel=Model("the reference"))
    row = {"query": {"turns": ["q"], "scorer": "text"}, "gold": {"references": ["the reference"]}, "index": 0}
    assert oracle(row)
    assert not oracle({**row, "gold": {"references": []}})


ROUTERS: dict[str, Callable[[str, float], Router]] = {
    "random": lambda path, threshold: RandomRouter(1.0 - threshold),
    "learned": LearnedRouter,
    "lifelong": lambda path, threshold: LifelongRouter(path, threshold, explore=0.0),
    "constrained": lambda path, threshold: PrivacyRouter(LearnedRouter(path, threshold)),
}


@pytest.mark.parametrize("name", ROUTERS)
def test_a_score_equal_to_the_threshold_goes_to_the_cloud(name: str, path: str) -> None:
    build = ROUTERS[name]
    score = build(path, 0.5).score_row(row(1))
    assert 0 < score < 1
    # The resolution of 1 - ratio.
    step = 2.0**-52
    decided = [build(path, threshold)(row(1)) for threshold in (score, score + step, score - step)]
    assert decided == [True, False, True]
