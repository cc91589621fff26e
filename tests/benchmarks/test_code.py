"""Programs in answers, and whether they pass."""

from __future__ import annotations

import gzip
import json
import logging
import os
from types import SimpleNamespace
from typing import Any

import pytest

from ianvs_specdec.benchmarks.code import failure, program, run_all
from ianvs_specdec.benchmarks.sandbox import Limits
from ianvs_specdec.benchmarks.scorers import scorer
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.plugin.processor import DatasetProcessor
from ianvs_specdec.records.response import Response
from ianvs_specdec.workspace.scoring import scores
from tests.support.paths import shared_file

if os.name != "posix":
    pytest.skip("programs are run with limits only on POSIX systems", allow_module_level=True)

LIMITS = Limits(seconds=5)

PROMPT = '''import math
from typing import List

def half(n: int) -> int:
    return n // 2

def count(numbers: List[int]) -> int:
    """How many of the numbers are even?
    >>> count([1, 2])
    1
    """
'''
TEST = "def check(candidate):\n    assert candidate([]) == 0\n    assert candidate([1, 2, 4]) == 2\n"
GOLD = {"prompt": PROMPT, "entry_point": "count", "test": TEST}

WHOLE = "def count(numbers: List[int]) -> int:\n    return sum(2 * half(n) == n for n in numbers)"
BODY = "    total = 0\n    for n in numbers:\n        if n % 2 == 0:\n            total += 1\n    return total"
UNINDENTED = "total = 0\nfor n in numbers:\n    if n % 2 == 0:\n        total += 1\nreturn total"
IN_A_LOOP = "for n in range(len(numbers) + 1):\n    if sum(m % 2 == 0 for m in numbers) == n:\n        return n"


def fenced(text: str, language: str = "python") -> str:
    return f"```{language}\n{text}\n```\n"


@pytest.mark.parametrize(
    "answer",
    [
        WHOLE,
        fenced(WHOLE),
        f"Sure! Here is the function:\n\n{fenced(WHOLE, '')}\nIt uses `half`.",
        f"For example\n{fenced('print(count([1, 2]))')}is 1:\n{fenced(WHOLE)}",
        f"```python\n{WHOLE}",
        PROMPT + BODY,
        f"Here it is:\n\n{WHOLE}\n\nThis counts the even ones.",
        "  - a list item:\n" + "\n".join(f"    {line}" for line in fenced(WHOLE).split("\n")),
        fenced("def even(n):\n    return n % 2 == 0\n\ndef count(numbers):\n    return sum(map(even, numbers))"),
        BODY,
        BODY + "\n\n# The end\nprint(count([]))",
        BODY.strip() + "\n\nThis counts the even ones.",
        UNINDENTED,
        IN_A_LOOP,
        fenced(UNINDENTED),
        f"The body is\n{fenced(BODY)}",
        BODY.replace("\n", "\r\n"),
        fenced("@staticmethod\n" + WHOLE),
    ],
)
def test_the_program_of_an_answer(answer: str) -> None:
    assert failure(answer, GOLD, LIMITS) == ""


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("    return 1", "AssertionError"),
        ("    return nonsense", "NameError"),
        ("", "the answer has no program that defines count"),
        ("I cannot do that.", "the answer has no program that defines count"),
        (fenced("def count(numbers):\n    raise ValueError('no')"), "ValueError: no"),
        (fenced("def other(numbers):\n    return 1"), "AssertionError"),
    ],
)
def test_wrong_answers_and_why(answer: str, reason: str) -> None:
    assert failure(answer, GOLD, LIMITS).startswith(reason)


def test_reasoning_and_corrected_programs_are_not_run() -> None:
    """Neither those of thoughts nor those that the answer corrects."""
    draft = fenced("def count(numbers):\n    return 1")
    for answer in (
        f"<think>{draft}</think>\n{fenced(WHOLE)}",
        f"{draft}No:\n{fenced(WHOLE)}",
        f"{draft}</think>{BODY}",
    ):
        assert failure(answer, GOLD, LIMITS) == "", answer
    assert program(f"<think>{fenced(WHOLE)}", PROMPT, "count") is None
    assert failure(f"<think>{'x' * 100_000}</think>{WHOLE}", GOLD, LIMITS) == ""


# Rows


def results_of(rows: list[dict[str, Any]], answers: list[str]) -> list[Response]:
    results = []
    for row, answer in zip(rows, answers, strict=True):
        result = Response(turns=[{"completion": answer}], scorer="code")
        result.row = row
        results.append(result)
    return results


def processed(count: int, **hyperparameters: Any) -> list[dict[str, Any]]:
    questions = [{"turns": [PROMPT], "scorer": "code"}] * count
    rows: list[dict[str, Any]] = DatasetProcessor(**hyperparameters)(SimpleNamespace(x=questions, y=[GOLD] * count)).x
    return rows


def test_programs_run_only_if_permitted(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        results = results_of(processed(2), [BODY, "    return 1"])
    assert "only with run_code: true" in caplog.text
    assert scores(results, [GOLD] * 2) == [None, None]
    assert scorer("code")([BODY], GOLD) is None


def test_pass_at_1(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        results = results_of(processed(3, run_code=True), [BODY, "    return 1", fenced(WHOLE)])
    assert scores(results, [GOLD] * 3) == [100.0, 0.0, 100.0]
    assert scorer("code")(["nothing", BODY], results[0].row["gold"]) == 100.0
    (record,) = caplog.records
    assert "programs that a model wrote run on this machine" in record.getMessage()


def test_the_time_that_a_program_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = processed(1, run_code=True, code_timeout=1)
    assert rows[0]["gold"]["run"] == 1.0
    assert processed(1, run_code=True)[0]["gold"]["run"] == 5.0
    assert scores(results_of(rows, ["    while True: pass"]), [GOLD]) == [0.0]


@pytest.mark.parametrize("answer", ["text", {**GOLD, "test": None}])
def test_a_row_without_tests_is_an_error(answer: Any) -> None:
    dataset = SimpleNamespace(x=[{"turns": ["q"], "scorer": "code"}], y=[answer])
    with pytest.raises(UserError, match="data row 1: scorer code needs an object with the texts prompt, entry_point"):
        DatasetProcessor()(dataset)


# The real problems


def problems() -> list[dict[str, Any]]:
    path = shared_file("data", "humaneval", "HumanEval.jsonl.gz")
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def pairs(rows: list[dict[str, Any]], solution: str | None = None) -> list[tuple[list[str], dict[str, Any]]]:
    return [([row["canonical_solution"] if solution is None else solution], {**row, "run": 10.0}) for row in rows]


@pytest.mark.parametrize("every", [24, pytest.param(4, marks=pytest.mark.slow)])
def test_canonical_solutions_pass_and_others_do_not(every: int) -> None:
    rows = problems()[::every]
    assert run_all(pairs(rows)) == [100.0] * len(rows)
    assert run_all(pairs(rows, "    return None")) == [0.0] * len(rows)
