"""Which letter an answer chooses: 200 recorded answers with known letters."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.benchmarks.letters import extract_choice, options_of
from ianvs_specdec.benchmarks.scorers import prediction, scorer
from tests.support.lines import rows_in

RECORDED: list[dict[str, Any]] = rows_in(Path(__file__).parent / "recorded" / "choices.jsonl")


def test_recorded_answers_choose_the_letters_that_they_mean() -> None:
    assert len(RECORDED) == 200
    for row in RECORDED:
        assert extract_choice(row["text"]) == row["letter"], row["text"]


def test_recorded_answers_score_as_by_hand() -> None:
    """An answer is right for its letter and wrong for the three others; one that chooses none is always wrong."""
    right = dict.fromkeys("ABCD", 0)
    for row in RECORDED:
        scores = {gold: scorer("choice")([row["text"]], gold) for gold in "ABCD"}
        assert scores == {gold: 100.0 if gold == row["letter"] else 0.0 for gold in "ABCD"}
        right = {gold: count + (scores[gold] == 100.0) for gold, count in right.items()}
    assert sum(right.values()) == sum(row["letter"] is not None for row in RECORDED)
    assert prediction("choice", ["x", "So, C."]) == "C"


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("B", "B"),
        (" b ", "B"),
        ("(B)", "B"),
        ("B.", "B"),
        ("**B**", "B"),
        ("[C]", "C"),
        ("The answer is B.", "B"),
        ("The correct answer is (C), because A is wrong.", "C"),
        ("Answer: D", "D"),
        ("answer:\nD", "D"),
        ("I think the answer is **A**.", "A"),
        ("The answer should be option B", "B"),
        ("Option C is right.", "C"),
        ("A. a dog", "A"),
        ("B) because it rains", "B"),
        ("First I thought the answer is A. But the answer is C.", "C"),
        (r"So \boxed{D}", "D"),
        (r"\boxed{\text{(B)}} is it", "B"),
        ("It must be C", "C"),
        ("The answer is Paris (B), since A and C are rivers.", "B"),
        ("The answer is B, not Paris (A).", "B"),
        ("The answer is option B, not Paris (A).", "B"),
        ("We have 12+30=42 (C).", "C"),
        ("It is J", "J"),
        ("", None),
        ("no idea", None),
        ("A dog runs", None),
        ("I am sure", None),
        ("Either B or C", None),
        ("The answer is a secret", None),
        ("The answer is A dog", None),
        ("It's D'Artagnan", None),
        ("K", None),
    ],
)
def test_the_letter(text: str, letter: str | None) -> None:
    assert extract_choice(text) == letter


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("It's D'Artagnan", None),
        ("The answer is I.", "I"),
        ("The answer is I think unclear", None),
        ("option A would be wrong", "A"),
        ("Ｂ", "B"),  # noqa: RUF001 - full width
        ("\n\n(C)\nbecause", "C"),
        ("应选C，不选A。", "C"),  # noqa: RUF001
        ("K", None),
        ("ABC", None),
        ("B2B", None),
    ],
)
def test_letters_that_are_words(text: str, letter: str | None) -> None:
    assert extract_choice(text) == letter


@pytest.mark.parametrize(
    "text", ["A " * 20_000, "answer " * 10_000, "(" * 20_000, "answer is " + "*" * 20_000, "\n" * 50_000]
)
def test_long_answers_do_not_take_long(text: str) -> None:
    extract_choice(text)


def test_long_texts_are_not_kept() -> None:
    text = "Which one?\nA. this\nB. that\n" * 1000
    before = sys.getrefcount(text)
    assert (options_of(text), extract_choice(text)) == ("AB", None)
    assert sys.getrefcount(text) == before


def test_a_label_counts_at_the_beginning_only() -> None:
    assert extract_choice("B) not C, by the way") == "B"
    assert extract_choice("Well, well.\nB) not C, by the way") is None


def test_of_statements_within_each_other_the_last_letter_counts() -> None:
    assert extract_choice("The answer is not what many would pick A for, but the last one (C).") == "C"


def test_options_are_two_lines_at_least() -> None:
    assert options_of("Who wrote it?\nA. Smith") == ""
    assert options_of("Which one?\nA. this\nB. that\nC. none\nAnswer:") == "ABC"
    assert options_of("Which one?\nA. this\nB. that\nC. none\nIn the words of\nA. Smith") == "ABC"
