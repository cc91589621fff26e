"""A column of a round is what the plain column is of the round's rows."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Completion, Query, Trace
from ianvs_specdec.plugin.processor import ROUNDS, DatasetProcessor
from ianvs_specdec.plugin.response import response_of, turn_of
from ianvs_specdec.report.metrics import METRICS


def row(round_number: int | None, text: str, *, hard: bool = False) -> list[Any]:
    completion = Completion(text, [1], 10, 1, "stop", Trace([(1.0, 1)]))
    turn = turn_of(completion, key="k", replayed=False, cached=False, hardware="h", baseline=None)
    side = "cloud" if hard else "edge"
    details: dict[str, Any] = {"model": "m", "backend": "b", "greedy": True, "slo": None, "routing": None, "side": side}
    answer = response_of(Query(("q",), scorer="choice"), [completion], [turn], **details, cost=None)
    if round_number is not None:
        answer["round"] = round_number
    return [hard, answer, None if hard else answer, answer if hard else None]


ROWS = [row(1, "B"), row(1, "C", hard=True), row(2, "B"), row(2, "B"), row(2, "C"), row(2, "B", hard=True)]


def test_a_round_has_its_own_rows() -> None:
    found = [METRICS[f"Accuracy: round {number}"](["B"] * 6, ROWS) for number in (1, 2)]
    assert found == [50.0, 75.0]
    assert METRICS["Edge Ratio: round 2"](["B"] * 6, ROWS) == 75.0
    assert METRICS["Accuracy: round 2 CI95"](["B"] * 6, ROWS) > 0
    assert METRICS["Accuracy"](["B"] * 6, ROWS) == pytest.approx(100 * 4 / 6, abs=1e-3)


def test_without_rounds_and_beyond_the_last_it_is_undefined() -> None:
    assert math.isnan(METRICS["Accuracy: round 3"](["B"] * 6, ROWS))
    assert math.isnan(METRICS["Accuracy: round 1"](["B"], [row(None, "B")]))


@pytest.mark.parametrize(("rows", "rounds"), [(600, 4), (7, 3), (5, 12), (1, 1)])
def test_rounds_are_of_equal_size_in_order_and_nothing_is_dropped(rows: int, rounds: int) -> None:
    dataset = SimpleNamespace(x=[f"question {index}" for index in range(rows)], y=["A"] * rows)
    made = DatasetProcessor(rounds=rounds)(dataset).x
    numbers = [data["round"] for data in made]
    assert [data["index"] for data in made] == list(range(rows))
    assert numbers == sorted(numbers)
    assert 1 <= numbers[0] <= numbers[-1] <= rounds
    sizes = [numbers.count(number) for number in range(1, rounds + 1)]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("wrong", [0, ROUNDS + 1, 1.5, True, "4"])
def test_rounds_that_cannot_be_are_told(wrong: Any) -> None:
    with pytest.raises(UserError) as told:
        DatasetProcessor.check_hyperparameters({"rounds": wrong})
    assert told.value.key == "rounds"
