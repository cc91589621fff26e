"""Answers that could not be read, and what guessing gives."""

from __future__ import annotations

import logging
import math
from typing import Any

import pytest

from ianvs_specdec.common.errors import warn_once
from tests.report.metrics.traces import completion, edge_row, value

FOUR = "Which?\nA. a\nB. b\nC. c\nD. d"
TWO = "Which?\nA. a\nB. b"


def row(text: str, question: str = FOUR, scorer: str = "choice") -> list[Any]:
    return edge_row(completion([(0.1, 1)], text=text), question=question, scorer=scorer)


def test_answers_without_a_letter_are_counted() -> None:
    rows = [row("B"), row("hard to say"), row("It is A"), row("")]
    assert value("Unparsed Answers", rows) == 50
    assert value("Accuracy", rows) == 25
    assert value("Unparsed Answers", [row("none", scorer="number"), row("5", scorer="number")]) == 50


def test_the_chance_level_is_the_mean_over_the_options() -> None:
    assert value("Chance Level", [row("A"), row("A", TWO)]) == 37.5
    assert value("Chance Level", [row("A"), row("x", scorer="none")]) == 25
    assert math.isnan(value("Chance Level", [row("A"), row("A", "no options")]))


@pytest.mark.parametrize(("unread", "told"), [(1, False), (2, True)])
def test_many_unparsed_answers_warn_once(caplog: pytest.LogCaptureFixture, unread: int, told: bool) -> None:
    warn_once.cache_clear()
    rows = [row("hm") for _ in range(unread)] + [row("A") for _ in range(15 - unread)]
    with caplog.at_level(logging.WARNING):
        value("Accuracy", rows)
        value("Accuracy", rows)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == told
    assert all("2 of 15 answers hold no letter" in line and "guessing gives 25.0" in line for line in lines)
