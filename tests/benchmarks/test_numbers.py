"""Which number an answer comes to: 200 recorded answers with known numbers, and the published definitions."""

from __future__ import annotations

import gzip
import json
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.benchmarks.numbers import extract_number, marked_number, plain
from tests.support.lines import rows_in

RECORDED: list[dict[str, Any]] = rows_in(Path(__file__).parent / "recorded" / "numbers.jsonl")
MARKED = re.compile(r"#### (\-?[0-9\.\,]+)")
"""GSM8K's own definition, in grade_school_math/dataset.py."""
LAST = re.compile(r"(-?[$0-9.,]{2,})|(-?[0-9]+)")
"""lm-evaluation-harness, gsm8k_cot: flexible-extract, the last match, without what ``regexes_to_ignore`` takes away."""


def reference(text: str) -> float | None:
    """What the published definitions find; None where they find no number."""
    if found := MARKED.search(text):
        taken = found.group(1)
    else:
        matches = LAST.findall(text)
        taken = next(part for part in matches[-1] if part) if matches else ""
    try:
        return float(re.sub(r"\.$", "", re.sub(r"[,$]", "", taken)))
    except ValueError:
        return None


def test_recorded_answers_come_to_the_numbers_that_they_mean() -> None:
    assert len(RECORDED) == 200
    for row in RECORDED:
        found = extract_number(row["text"])
        assert (None if found is None else plain(found)) == row["number"], row["text"]


def test_recorded_answers_are_as_by_the_published_definitions() -> None:
    """Where those go wrong (fractions, hyphens, periods at the end, "$" after the number), the row says so."""
    for row in RECORDED:
        meant = None if row["number"] is None else float(Fraction(row["number"]))
        assert (reference(row["text"]) == meant) is not row.get("differs", False), row["text"]
    assert sum(row.get("differs", False) for row in RECORDED) < 30


@pytest.mark.parametrize("every", [10, pytest.param(1, marks=pytest.mark.slow)])
def test_the_public_solutions(shared: Path, every: int) -> None:
    """Solutions of the training set: as marked, and as the last number where the mark is taken away."""
    with gzip.open(shared / "data" / "gsm8k" / "train.jsonl.gz", "rt", encoding="utf-8") as file:
        solutions = [json.loads(line)["answer"] for line in file]
    assert len(solutions) == 7473
    for solution in solutions[::every]:
        gold = Fraction(solution.rpartition("#### ")[2].replace(",", ""))
        assert extract_number(solution) == gold == Fraction(marked_number(solution) or "x")
        assert extract_number(solution.replace("#### ", "So the answer is ") + ".") == gold
