"""Starred columns, ``Known`` columns, and unparsed answers."""

from __future__ import annotations

import logging
import math
from typing import Any

import pytest

from ianvs_specdec.common.errors import warn_once
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


FOUR = "Which?\nA. a\nB. b\nC. c\nD. d"
TWO = "Which?\nA. a\nB. b"


def choice_row(text: str, question: str = FOUR, scorer: str = "choice") -> list[Any]:
    return edge_row(completion([(0.1, 1)], text=text), question=question, scorer=scorer)


def test_answers_without_a_letter_are_counted() -> None:
    rows = [choice_row("B"), choice_row("hard to say"), choice_row("It is A"), choice_row("")]
    assert value("Unparsed Answers", rows) == 50
    assert value("Accuracy", rows) == 25
    assert value("Unparsed Answers", [choice_row("none", scorer="number"), choice_row("5", scorer="number")]) == 50


def test_the_chance_level_is_the_mean_over_the_options() -> None:
    assert value("Chance Level", [choice_row("A"), choice_row("A", TWO)]) == 37.5
    assert value("Chance Level", [choice_row("A"), choice_row("x", scorer="none")]) == 25
    assert math.isnan(value("Chance Level", [choice_row("A"), choice_row("A", "no options")]))


@pytest.mark.parametrize(("unread", "told"), [(1, False), (2, True)])
def test_many_unparsed_answers_warn_once(caplog: pytest.LogCaptureFixture, unread: int, told: bool) -> None:
    warn_once.cache_clear()
    rows = [choice_row("hm") for _ in range(unread)] + [choice_row("A") for _ in range(15 - unread)]
    with caplog.at_level(logging.WARNING):
        value("Accuracy", rows)
        value("Accuracy", rows)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == told
    assert all("2 of 15 answers hold no letter" in line and "guessing gives 25.0" in line for line in lines)
