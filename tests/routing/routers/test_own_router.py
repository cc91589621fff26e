"""Routers that users write: whatever one returns, it is a score or a message that names the router and the query."""

from __future__ import annotations

import decimal
import fractions
from typing import Any

import numpy as np
import pytest

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Query
from ianvs_specdec.routing.routers.base import Decision, Router
from ianvs_specdec.routing.routers.budget import BudgetRouter

ROW = {"query": {"turns": ["Which river?"], "id": "q7"}, "gold": "A", "index": 6}


class Own(Router):
    """Returns, or raises, what it is given."""

    def __init__(self, value: Any) -> None:
        super().__init__(0.5)
        self.value = value

    def score(self, query: Query) -> float:
        if isinstance(self.value, BaseException):
            raise self.value
        return self.value  # type: ignore[no-any-return]


class Deciding(Own):
    def decide(self, data: Any) -> Decision:
        return self.value  # type: ignore[no-any-return]


SCORES = [
    (0, False),
    (1, True),
    (0.5, True),
    (0.49, False),
    (True, True),
    (np.float64(0.5), True),
    (np.float32(0.25), False),
    (np.int64(1), True),
    (np.bool_(False), False),
    (np.array(0.75), True),
    (fractions.Fraction(1, 3), False),
]


@pytest.mark.parametrize(("value", "hard"), SCORES, ids=repr)
def test_any_number_from_0_to_1_is_a_score(value: Any, hard: bool) -> None:
    row = dict(ROW)
    assert Own(value)(row) is hard
    assert type(row["routing"]["score"]) is float
    assert row["routing"]["score"] == pytest.approx(float(value))


WRONG = [
    *(float("nan"), float("inf"), -float("inf"), 5, -0.1, 1.0000001, 10**400, np.float64("nan"), np.float32(2)),
    *(
        "0.5",
        "",
        None,
        [],
        [0.5],
        {},
        (0.5,),
        b"1",
        0.5j,
        decimal.Decimal("0.5"),
        np.array([0.5]),
        np.array([]),
        object,
    ),
]


@pytest.mark.parametrize("value", WRONG, ids=repr)
def test_anything_else_is_refused_with_router_file_and_query(value: Any) -> None:
    row = dict(ROW)
    with pytest.raises(UserError) as told:
        Own(value)(row)
    assert "router Own (" in str(told.value)
    assert "test_own_router.py), query 'q7': the score must be a number from 0 to 1" in str(told.value)
    assert "routing" not in row


@pytest.mark.parametrize("error", [ValueError("no such word"), ZeroDivisionError("by zero"), KeyError("group")])
def test_an_error_names_router_query_and_line(error: Exception) -> None:
    with pytest.raises(UserError) as told:
        Own(error)(dict(ROW))
    kind = type(error).__name__
    words = rf"router Own \(.*test_own_router\.py\), query 'q7' failed: {kind}: .* \(test_own_router\.py:\d+\)"
    assert told.match(words)
    assert told.value.__cause__ is error


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "decide must return a Decision, not None"),
        (True, "decide must return a Decision, not True"),
        (Decision(float("nan"), True), "the score must be a number from 0 to 1"),
        (Decision(0.5, None), "hard must be True or False, not None"),  # type: ignore[arg-type]
        (Decision(0.5, "no"), "hard must be True or False, not 'no'"),  # type: ignore[arg-type]
    ],
)
def test_a_decision_is_checked_as_well(value: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        Deciding(value)(dict(ROW))
    assert Deciding(Decision(np.float64(0.1), np.bool_(True)))(dict(ROW)) is True


def test_within_a_constraint_the_same_holds() -> None:
    with pytest.raises(UserError, match=r"router Own \(.*\), query 'q7': the score must be a number from 0 to 1"):
        BudgetRouter(router=Own(float("nan")), cloud_share=0.5)(dict(ROW))
