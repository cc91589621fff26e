"""Columns of one kind of question are what the plain columns are of the queries of that kind."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from ianvs_specdec.benchmarks.registry import categories
from ianvs_specdec.common.types import Completion, Query, Step, Trace
from ianvs_specdec.plugin.response import response_of, turn_of
from ianvs_specdec.report.metrics import METRICS
from ianvs_specdec.report.metrics.groups import BY_CATEGORY


def row(group: str, text: str, seconds: float, tokens: int, steps: int) -> list[Any]:
    """A query of the group, answered in so many seconds, tokens and steps; the baseline takes a second per token."""
    trace = Trace([(seconds, tokens)], [Step(4, 1, tokens // steps, 5)] * steps)
    completion = Completion(text, list(range(tokens)), 10, tokens, "stop", trace)
    baseline = {"key": "k", "latency": float(tokens), "completion_tokens": tokens, "identical": True}
    turn = turn_of(completion, key="k", replayed=False, cached=False, hardware="h", baseline=baseline)
    query = Query(("q",), scorer="choice", group=group)
    details = {"model": "m", "backend": "b", "greedy": True, "slo": None, "routing": None, "side": "edge", "cost": None}
    answer = response_of(query, [completion], [turn], **details)
    return [False, answer, answer, None]


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


def value(name: str, rows: list[list[Any]]) -> float:
    return METRICS[name](np.array(["B"] * len(rows), dtype=object), rows)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Throughput: translation", 20 / 5),
        ("Speedup: translation", 20 / 5),
        ("Mean Accepted Tokens: translation", 20 / 7),
        ("Accuracy: translation", 50.0),
        ("Throughput: multi-turn conversation", 12 / 4),
        ("Throughput: writing", 4.0),
        # The same name is another subject's category in the other benchmark.
        ("Accuracy: other", 100.0),
        ("Accuracy: STEM", 50.0),
        ("Throughput: STEM", 5 / 4),
        ("Accuracy: anatomy", 100.0),
        ("Accuracy: abstract_algebra", 0.0),
        ("Accuracy: cmmlu_anatomy", 100.0),
    ],
)
def test_by_hand(name: str, expected: float) -> None:
    assert value(name, ROWS) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("category", ["translation", "multi-turn conversation", "STEM"])
@pytest.mark.parametrize("name", [*BY_CATEGORY, *(f"{name}: CI95" for name in BY_CATEGORY)])
def test_a_column_is_the_plain_one_of_its_queries(name: str, category: str) -> None:
    plain, _, interval = name.partition(": ")
    own = [row for row in ROWS if row[1]["group"] in categories()[category]]
    expected = value(f"{plain} {interval}".strip(), own)
    assert value(f"{plain}: {category} {interval}".strip(), ROWS) == expected
    assert not math.isnan(expected)


def test_without_a_query_of_the_kind_it_is_undefined() -> None:
    assert math.isnan(value("Accuracy: rag", ROWS))
    assert math.isnan(value("Speedup: rag", ROWS))
    assert math.isnan(value("Throughput: rag CI95", ROWS))
    assert math.isnan(value("Throughput: writing CI95", ROWS))
