"""Which letter an answer chooses, and how good a text is."""

from __future__ import annotations

import pytest

from ianvs_specdec.benchmarks.scorers import extract_choice, references_of, scorer
from ianvs_specdec.errors import UserError


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


def test_choice_looks_at_the_last_turn() -> None:
    assert scorer("choice")(["A", "The answer is B."], "B") == 100.0
    assert scorer("choice")(["B", "A"], "B") == 0.0
    assert scorer("choice")(["nothing"], "B") == 0.0
    assert scorer("choice")(["B"], "") is None


def test_text_is_mean_chrf_of_the_turns_with_a_reference() -> None:
    assert scorer("text")(["same", "x"], {"references": ["same", "y"]}) == pytest.approx(50.0)
    assert scorer("text")(["same", "x"], {"references": ["same"]}) == pytest.approx(100.0)
    assert scorer("text")(["same", "x"], {"references": ["", ""]}) is None
    assert scorer("text")(["same"], "same") == pytest.approx(100.0)
    assert scorer("none")(["same"], "same") is None


def test_references() -> None:
    assert references_of({"references": ["a"]}) == ["a"]
    assert references_of({}) == references_of("") == references_of(None) == []


def test_an_unknown_scorer() -> None:
    with pytest.raises(UserError, match="Did you mean 'choice'"):
        scorer("choise")
