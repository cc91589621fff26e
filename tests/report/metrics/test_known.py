"""A cell that speaks of all answers knows all of them, or is empty; beside it stands how many it knows."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ianvs_specdec.common.types import Step
from ianvs_specdec.report.metrics.columns import CLAIMS
from tests.report.metrics.traces import baseline, cloud_row, completion, edge_row, value

STEPS = [Step(3, 2, 3, 4)]
CHECKED = edge_row(completion([(1.0, 1), (2.0, 3)], STEPS), baseline=baseline(4.0, 4), cost=0.001)


def silent(**details: Any) -> list[Any]:
    """An answer of a server that tells text and times alone: no baseline, no steps, no price."""
    return cloud_row(completion([(1.0, 1), (2.0, 3)]), baseline=None, **details)


@pytest.mark.parametrize("name", sorted(CLAIMS - {"Drafting Share", "Edge Cost"}))
def test_lossless_is_empty_without_a_comparison(name: str) -> None:
    rows = [CHECKED] * 6 + [silent()] * 4
    assert math.isnan(value(name, rows))
    assert math.isnan(value(f"{name} CI95", rows))
    assert value(f"{name} Known", rows) == 6
    assert not math.isnan(value(name, rows[:6]))
    assert value(f"{name} Known", rows[:6]) == 6


def test_answers_with_missing_steps_have_no_value() -> None:
    cut = edge_row(completion([(1.0, 1), (2.0, 7)], STEPS))
    assert math.isnan(value("Mean Accepted Tokens", [CHECKED, cut]))
    assert value("Mean Accepted Tokens Known", [CHECKED, cut]) == 1
    # The prefill yields the first token: without a second one there is no step to tell.
    short = cloud_row(completion([(1.0, 1)]))
    assert value("Mean Accepted Tokens", [CHECKED, short]) == 3.0


def test_failed_queries_do_not_affect_starred_columns() -> None:
    failed = edge_row(error="no answer", failures=[(1.0, "HTTP 500")])
    assert value("Lossless", [CHECKED, failed]) == 100.0
    assert value("Lossless Known", [CHECKED, failed]) == 1
    assert value("Edge Cost", [CHECKED, failed]) == 1.0


def test_known_counts_the_queries_of_a_mean() -> None:
    rows = [edge_row(completion([(1.0, 1)]), scorer=scorer) for scorer in ("choice", "none", "choice")]
    assert value("Accuracy", rows) == 100.0
    assert value("Accuracy Known", rows) == 2
    assert value("Latency Known", [*rows, edge_row(completion([], text=""))]) == 3


def test_unknown_memory_makes_the_column_empty() -> None:
    told = edge_row(completion([(1.0, 1)]))
    told[1]["turns"][0]["trace"]["memory"] = 5_000_000
    assert value("Model Memory", [told]) == 5.0
    assert math.isnan(value("Model Memory", [told, silent()]))
