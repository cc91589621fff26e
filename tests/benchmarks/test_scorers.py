"""What an answer comes to and what its score is, on recorded answers and by the published definitions."""

from __future__ import annotations

import gzip
import json
import re
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.benchmarks.extraction import extract_choice, extract_number, marked_number, options_of
from ianvs_specdec.benchmarks.judge_prompts import rating
from ianvs_specdec.benchmarks.scorers import prediction, scorer
from ianvs_specdec.workspace.scoring import scores
from tests.support.jsonl import read_jsonl


def recorded(name: str) -> list[dict[str, Any]]:
    return read_jsonl(Path(__file__).parent / "recorded" / f"{name}.jsonl")


NUMBERS = recorded("numbers")
FORMS = [
    *({"kind": "choice", "text": row["text"], "right": row["letter"]} for row in recorded("choices")),
    *({"kind": "number", "text": row["text"], "right": row["number"]} for row in NUMBERS),
    *recorded("forms"),
]
"""``kind``: a scorer, or ``rating`` and ``official rating`` for a judgment by our and FastChat's prompts."""
KINDS = ("choice", "number", "rating", "official rating", "text")
LONG = ("A, ", "A项的", "not the ", "`<think>", "*", "(", "answer ", "\n", "1", "1,", "- ", "1/", "$")


def found(kind: str, text: str) -> str | None:
    if not kind.endswith("rating"):
        return prediction(kind, ["The answer is J, 99.", text])
    value = rating(text, official=kind == "official rating")
    return None if value is None else f"{value:g}"


@pytest.mark.parametrize("kind", KINDS)
def test_recorded_answers_come_to_what_they_mean(kind: str) -> None:
    texts = {row["text"]: row["right"] for row in FORMS if row["kind"] == kind}
    assert len(texts) >= 15
    assert {text: found(kind, text) for text in texts} == texts


@pytest.mark.parametrize("text", [part * 20_000 for part in LONG], ids=LONG)
def test_long_texts_do_not_take_long(text: str) -> None:
    for kind in KINDS:
        found(kind, text)


def test_long_texts_are_not_kept() -> None:
    text = "Which one?\nA. this\nB. that\n" * 1000
    before = sys.getrefcount(text)
    assert (options_of(text), extract_choice(text)) == ("AB", None)
    assert sys.getrefcount(text) == before


def test_options_are_two_lines_at_least() -> None:
    assert options_of("Who wrote it?\nA. Smith") == ""
    assert options_of("Which one?\nA. this\nB. that\nC. none\nIn the words of\nA. Smith") == "ABC"


# GSM8K's own definition (grade_school_math/dataset.py), and the last match of lm-evaluation-harness's flexible-extract
# (gsm8k_cot), without what ``regexes_to_ignore`` takes away.
MARKED, LAST = re.compile(r"#### (\-?[0-9\.\,]+)"), re.compile(r"(-?[$0-9.,]{2,})|(-?[0-9]+)")


def reference(text: str) -> float | None:
    """What the published definitions find; None where they find no number."""
    if marked := MARKED.search(text):
        taken = marked.group(1)
    else:
        matches = LAST.findall(text)
        taken = next(part for part in matches[-1] if part) if matches else ""
    try:
        return float(re.sub(r"\.$", "", re.sub(r"[,$]", "", taken)))
    except ValueError:
        return None


def test_recorded_numbers_are_as_by_the_published_definitions() -> None:
    """Where those go wrong (fractions, hyphens, periods at the end, "$" after the number), the row says so."""
    for row in NUMBERS:
        meant = None if row["number"] is None else float(Fraction(row["number"]))
        assert (reference(row["text"]) == meant) is not row.get("differs", False), row["text"]
    assert sum(row.get("differs", False) for row in NUMBERS) < 30


@pytest.mark.parametrize("every", [10, pytest.param(1, marks=pytest.mark.slow)])
def test_the_public_solutions(shared: Path, every: int) -> None:
    """Solutions of the training set: as marked, and as the last number where the mark is taken away."""
    with gzip.open(shared / "data" / "gsm8k" / "train.jsonl.gz", "rt", encoding="utf-8") as file:
        solutions = [json.loads(line)["answer"] for line in file]
    for solution in solutions[::every]:
        gold = Fraction(solution.rpartition("#### ")[2].replace(",", ""))
        assert extract_number(solution) == gold == Fraction(marked_number(solution) or "x")
        assert extract_number(solution.replace("#### ", "So the answer is ") + ".") == gold


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
