"""Columns of a category or a round equal the plain columns of its queries."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Step
from ianvs_specdec.plugin.processor import ROUNDS, DatasetProcessor
from tests.report.metrics.traces import baseline, cloud_row, completion, edge_row, value


def row(group: str, text: str, seconds: float, tokens: int, steps: int) -> list[Any]:
    """A query of the group, answered in so many seconds, tokens and steps; the baseline takes a second per token."""
    answer = completion([(seconds, tokens)], [Step(4, 1, tokens // steps, 5)] * steps, text=text)
    return edge_row(answer, group=group, baseline=baseline(float(tokens), tokens))


ROWS = [
    row("writing", "B", 2.0, 8, 2),
    row("translation", "C", 4.0, 8, 4),
    row("anatomy", "B", 5.0, 5, 5),
    row("translation", "B", 1.0, 12, 3),
    row("extraction", "B", 2.0, 4, 4),
    row("abstract_algebra", "C", 1.0, 2, 1),
    row("cmmlu_anatomy", "B", 3.0, 3, 1),
    row("no benchmark's", "B", 9.0, 9, 9),
]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Throughput: translation", 20 / 5),
        ("Speedup: translation", 20 / 5),
        ("Mean Accepted Tokens: translation", 20 / 7),
        ("Accuracy: translation", 50.0),
        ("Throughput: multi-turn conversation", 12 / 4),
        # The same name is another subject's category in the other benchmark.
        ("Accuracy: other", 100.0),
        ("Accuracy: STEM", 50.0),
        ("Accuracy: abstract_algebra", 0.0),
        ("Accuracy: cmmlu_anatomy", 100.0),
    ],
)
def test_by_hand(name: str, expected: float) -> None:
    assert value(name, ROWS) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", ["Accuracy CI95", "Speedup CI95"])
def test_a_category_interval_is_that_of_its_queries(name: str) -> None:
    plain = value(name, [ROWS[1], ROWS[3]])
    assert value(name.replace(" CI95", ": translation CI95"), ROWS) == plain > 0


def test_a_category_without_queries_is_undefined() -> None:
    assert math.isnan(value("Accuracy: rag", ROWS))
    assert math.isnan(value("Throughput: writing CI95", ROWS))


def round_row(number: int | None, text: str, *, hard: bool = False) -> list[Any]:
    made = (cloud_row if hard else edge_row)(completion([(1.0, 1)], text=text))
    if number is not None:
        made[1]["round"] = number
    return made


ROUND_ROWS = [
    round_row(1, "B"),
    round_row(1, "C", hard=True),
    round_row(2, "B"),
    round_row(2, "B"),
    round_row(2, "C"),
    round_row(2, "B", hard=True),
]


def test_a_round_has_its_own_rows() -> None:
    assert [value(f"Accuracy: round {number}", ROUND_ROWS) for number in (1, 2)] == [50.0, 75.0]
    assert value("Edge Ratio: round 2", ROUND_ROWS) == 75.0
    assert value("Accuracy: round 2 CI95", ROUND_ROWS) > 0
    assert math.isnan(value("Accuracy: round 3", ROUND_ROWS))
    assert math.isnan(value("Accuracy: round 1", [round_row(None, "B")]))


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
