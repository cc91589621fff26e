"""Rows of data files as queries, and the dataset processor."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ianvs_specdec.benchmarks.rows import normalize_row, query_of, query_of_row
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.plugin.processor import DatasetProcessor


@pytest.mark.parametrize(
    ("gold", "scorer"),
    [("J", "choice"), ("K", "text"), ("b", "text"), ("", "text")],
)
def test_a_plain_question(gold: str, scorer: str) -> None:
    query = query_of("why?", gold, 3)
    assert (query.turns, query.scorer, query.id) == (("why?",), scorer, "3")


def test_an_object_keeps_what_it_says() -> None:
    query = query_of({"turns": ["a", "b"], "id": 7, "group": "g", "scorer": "none", "system": "s"}, "B", 3)
    assert (query.turns, query.id, query.group, query.scorer, query.system) == (("a", "b"), "7", "g", "none", "s")
    assert query_of({"turns": ["a"]}, "B", 3).scorer == "choice"


@pytest.mark.parametrize(
    ("question", "message"),
    [
        (None, "must be a string or an object"),
        ({"turns": ["a", 1]}, "at least one string"),
        ({"turn": ["a"]}, "Did you mean 'turns'"),
        ({"turns": ["a"], "scorer": "lettr"}, "unknown scorer"),
    ],
)
def test_a_malformed_question_names_row_and_reason(question: Any, message: str) -> None:
    with pytest.raises(UserError, match="data row 5") as error:
        query_of(question, "", 4)
    assert message in str(error.value)


@pytest.mark.parametrize("answer", [2, "2", "(C)", "c)", "C. Oslo", "Oslo"])
def test_an_option_is_named_in_many_ways(answer: Any) -> None:
    row = {"question": {"turns": ["Which?"], "id": 7}, "choices": ["Rome", "Paris", "Oslo"], "answer": answer}
    question = {"turns": ["Which?\nA. Rome\nB. Paris\nC. Oslo\nAnswer:"], "id": 7, "scorer": "choice"}
    assert normalize_row(row) == (question, "C")
    assert normalize_row({"question": "Which?", "choices": ["Oslo", "Oslo"], "answer": "Oslo"})[1] == "Oslo", "which?"


@pytest.mark.parametrize(("answer", "letter"), [("b", "B"), ("(B)", "B"), ("B.", "B"), (1, "B"), ("Both.", "Both.")])
def test_options_within_the_question(answer: Any, letter: str) -> None:
    asked = "Which?\nA. Rome\nB. Paris"
    assert normalize_row(asked, answer) == (asked, letter)


def test_fields_beside_the_question_are_its_own() -> None:
    row = {"question": "Why?", "system": "Be brief.", "scorer": "number", "temperature": 0.5, "idx": 3, "answer": 2}
    rows = DatasetProcessor()(SimpleNamespace(x=[row], y=[2])).x
    query = query_of_row(rows[0])
    assert (query.system, query.scorer, query.temperature, rows[0]["gold"]) == ("Be brief.", "number", 0.5, 2)


@pytest.mark.parametrize("limit", [0, "fast", True])
def test_a_limit_that_makes_no_sense(limit: Any) -> None:
    with pytest.raises(UserError, match="slo_itl") as error:
        DatasetProcessor.check_hyperparameters({"slo_itl": limit})
    assert error.value.key == "slo_itl"
