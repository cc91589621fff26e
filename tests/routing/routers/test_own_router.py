"""Users' routers: valid scores, and errors with the router and the query."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Query
from ianvs_specdec.routing.routers.base import Decision, Router
from ianvs_specdec.routing.routers.budget import BudgetRouter

ROW = {"query": {"turns": ["Which river?"], "id": "q7"}, "gold": "A", "index": 6}


class Own(Router):
    """Returns or raises its argument."""

    def __init__(self, value: Any) -> None:
        super().__init__(0.5)
        self.value = value

    def score(self, query: Query) -> float:
        if isinstance(self.value, BaseException):
            raise self.value
        return self.value  # type: ignore[no-any-return]


@pytest.mark.parametrize("value", [0, 1, 0.5, True, np.float32(0.25), np.bool_(False), np.array(0.75), Fraction(1, 3)])
def test_any_number_from_0_to_1_is_a_score(value: Any) -> None:
    row = dict(ROW)
    assert Own(value)(row) is bool(value >= 0.5)
    assert type(row["routing"]["score"]) is float
    assert row["routing"]["score"] == pytest.approx(float(value))


WRONG = [float("nan"), 5, -0.1, 1.0000001, 10**400, np.float64("nan"), "0.5", None, [0.5], np.array([0.5])]


@pytest.mark.parametrize("value", WRONG, ids=repr)
def test_other_scores_are_refused_with_router_file_and_query(value: Any) -> None:
    for router in (Own(value), BudgetRouter(router=Own(value), cloud_share=0.5)):
        row = dict(ROW)
        with pytest.raises(UserError) as told:
            router(row)
        assert "router Own (" in str(told.value)
        assert "test_own_router.py), query 'q7': the score must be a number from 0 to 1" in str(told.value)
        assert "routing" not in row


class Deciding(Own):
    def decide(self, data: Any) -> Decision:
        return self.value  # type: ignore[no-any-return]


def test_an_error_names_router_query_and_line() -> None:
    words = r"router Own \(.*test_own_router\.py\), query 'q7' failed: KeyError: .* \(test_own_router\.py:\d+\)"
    with pytest.raises(UserError, match=words):
        Own(KeyError("group"))(dict(ROW))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "decide must return a Decision, not None"),
        (Decision(float("nan"), True), "the score must be a number from 0 to 1"),
        (Decision(0.5, None), "hard must be True or False, not None"),  # type: ignore[arg-type]
    ],
)
def test_a_decision_is_checked_as_well(value: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        Deciding(value)(dict(ROW))
    assert Deciding(Decision(np.float64(0.1), np.bool_(True)))(dict(ROW)) is True
