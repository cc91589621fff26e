"""Columns of one kind of question are what the plain columns are of the queries of that kind."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ianvs_specdec.common.types import Step
from tests.report.metrics.traces import baseline, completion, edge_row, value


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
