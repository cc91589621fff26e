"""What an answer's score is."""

from __future__ import annotations

import pytest

from ianvs_specdec.benchmarks.scorers import scorer
from ianvs_specdec.workspace.scoring import scores


def test_a_letter_or_a_number_of_the_last_turn_is_compared_by_value() -> None:
    for name, answers, gold, score in (
        ("choice", ["A", "The answer is B."], "B", 100.0),
        ("choice", ["B", "A"], "B", 0.0),
        ("choice", ["B"], "", None),
        ("number", ["18", "$1,080.00"], "1080", 100.0),
        ("number", ["18", "-18"], "18", 0.0),
        ("number", ["18", "I do not know"], "18", 0.0),
        ("number", ["18"], "", None),
    ):
        assert scorer(name)(answers, gold) == score


def test_text_is_mean_chrf_of_the_turns_with_a_reference() -> None:
    assert scorer("text")(["same", "x"], {"references": ["same", "y"]}) == pytest.approx(50.0)
    assert scorer("text")(["same", "x"], {"references": ["same"]}) == pytest.approx(100.0)
    assert scorer("text")(["same", "x"], {"references": ["", ""]}) is None
    assert scorer("text")(["same"], "same") == pytest.approx(100.0)
    assert scorer("none")(["same"], "same") is None


@pytest.mark.parametrize(("name", "answer"), [("choice", "B"), ("number", "18"), ("text", "Paris is it.")])
def test_thoughts_are_not_scored(name: str, answer: str) -> None:
    """Nor is anything else, where they do not end: it is the score of an empty answer."""
    thought = "It is A, 20, London."
    texts = [f"<think>{thought}</think>\n{answer}", f"{thought}</think>{answer}", f"<think>{answer}", answer, ""]
    results = [{"scorer": name, "turns": [{"completion": text}]} for text in texts]
    assert scores(results, [answer] * 5) == [100.0, 100.0, 0.0, 100.0, 0.0]
