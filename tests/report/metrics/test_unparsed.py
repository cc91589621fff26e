"""Answers that could not be read, and what guessing gives."""

from __future__ import annotations

import logging
import math
from typing import Any

import pytest

from ianvs_specdec.common.errors import warn_once
from ianvs_specdec.common.types import Completion, Query, Trace
from ianvs_specdec.plugin.response import response_of, turn_of
from ianvs_specdec.report.metrics import METRICS

FOUR = "Which?\nA. a\nB. b\nC. c\nD. d"
TWO = "Which?\nA. a\nB. b"


def row(text: str, question: str = FOUR, scorer: str = "choice", error: str = "") -> list[Any]:
    completion = Completion(text, [1], 5, 1, "stop", Trace([(0.1, 1)]))
    response = response_of(
        Query((question,), scorer=scorer),
        [completion],
        [turn_of(completion, replayed=False, cached=False)],
        side="edge",
    )
    if error:
        response["error"] = error
    return [False, response, response, None]


def value(name: str, rows: list[list[Any]], gold: str = "A") -> float:
    return METRICS[name]([gold] * len(rows), rows)


def test_answers_without_a_letter_are_counted() -> None:
    rows = [row("A"), row("hard to say"), row("It is B"), row("")]
    assert value("Unparsed Answers", rows) == 50
    assert value("Unparsed Answers CI95", rows) > 0
    assert value("Accuracy", rows) == 25
    assert value("Unparsed Answers", [row("none", scorer="number"), row("5", scorer="number")]) == 50


def test_the_chance_level_is_the_mean_over_the_options() -> None:
    assert value("Chance Level", [row("A"), row("A", TWO)]) == 37.5
    assert value("Chance Level", [row("A"), row("x", scorer="none")]) == 25
    assert math.isnan(value("Chance Level", [row("A"), row("A", "no options")]))
    assert math.isnan(value("Chance Level", [row("A"), row("A", scorer="text")]))


@pytest.mark.parametrize(("unread", "told"), [(0, False), (1, False), (2, True), (15, True)])
def test_many_are_told_once_on_the_screen(caplog: pytest.LogCaptureFixture, unread: int, told: bool) -> None:
    warn_once.cache_clear()
    rows = [row("hm") for _ in range(unread)] + [row("A") for _ in range(15 - unread)]
    with caplog.at_level(logging.WARNING):
        value("Accuracy", rows)
        value("Accuracy", rows)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == told
    for line in lines:
        assert line.startswith(f"{unread} of 15 answers hold no letter or number that could be read")
        assert "guessing gives 25.0" in line
