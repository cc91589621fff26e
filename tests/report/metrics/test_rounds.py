"""A column of a round is what the plain column is of the round's rows."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.plugin.processor import ROUNDS, DatasetProcessor
from tests.report.metrics.traces import cloud_row, completion, edge_row, value


def row(number: int | None, text: str, *, hard: bool = False) -> list[Any]:
    made = (cloud_row if hard else edge_row)(completion([(1.0, 1)], text=text))
    if number is not None:
        made[1]["round"] = number
    return made


ROWS = [row(1, "B"), row(1, "C", hard=True), row(2, "B"), row(2, "B"), row(2, "C"), row(2, "B", hard=True)]


def test_a_round_has_its_own_rows() -> None:
    assert [value(f"Accuracy: round {number}", ROWS) for number in (1, 2)] == [50.0, 75.0]
    assert value("Edge Ratio: round 2", ROWS) == 75.0
    assert value("Accuracy: round 2 CI95", ROWS) > 0
    assert math.isnan(value("Accuracy: round 3", ROWS))
    assert math.isnan(value("Accuracy: round 1", [row(None, "B")]))


@pytest.mark.parametrize(("rows", "rounds"), [(7, 3), (5, 12)])
def test_rounds_are_of_equal_size_in_order_and_nothing_is_dropped(rows: int, rounds: int) -> None:
    dataset = SimpleNamespace(x=[f"question {index}" for index in range(rows)], y=["A"] * rows)
    made = DatasetProcessor(rounds=rounds)(dataset).x
    numbers = [data["round"] for data in made]
    assert [data["index"] for data in made] == list(range(rows))
    assert numbers == sorted(numbers)
    assert 1 <= numbers[0] <= numbers[-1] <= rounds
    sizes = [numbers.count(number) for number in range(1, rounds + 1)]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("wrong", [0, ROUNDS + 1, "4"])
def test_invalid_rounds_are_errors(wrong: Any) -> None:
    with pytest.raises(UserError) as told:
        DatasetProcessor.check_hyperparameters({"rounds": wrong})
    assert told.value.key == "rounds"
