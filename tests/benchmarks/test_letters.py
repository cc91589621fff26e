"""Which letter an answer chooses: 200 recorded answers with known letters."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ianvs_specdec.benchmarks.letters import extract_choice, options_of
from tests.support.lines import rows_in

RECORDED: list[dict[str, Any]] = rows_in(Path(__file__).parent / "recorded" / "choices.jsonl")


def test_recorded_answers_choose_the_letters_that_they_mean() -> None:
    assert len(RECORDED) == 200
    for row in RECORDED:
        assert extract_choice(row["text"]) == row["letter"], row["text"]


def test_long_texts_are_not_kept() -> None:
    text = "Which one?\nA. this\nB. that\n" * 1000
    before = sys.getrefcount(text)
    assert (options_of(text), extract_choice(text)) == ("AB", None)
    assert sys.getrefcount(text) == before


def test_options_are_two_lines_at_least() -> None:
    assert options_of("Who wrote it?\nA. Smith") == ""
    assert options_of("Which one?\nA. this\nB. that\nC. none\nAnswer:") == "ABC"
    assert options_of("Which one?\nA. this\nB. that\nC. none\nIn the words of\nA. Smith") == "ABC"
