"""GSM8K: prompts without and with worked solutions, gold numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Rows = list[dict[str, Any]]

ASKED = {"question": "Tom has 2 nuts and 1,000 more. How many?", "answer": "2+1000=<<2+1000=1002>>1002\n#### 1,002"}
FIRST = {"question": "1+1?", "answer": "It is 2.\n#### 2"}
SECOND = {"question": "3-5?", "answer": "It is -2.\n#### -2"}


def test_prompts(write: Callable[..., Path], prepare: Callable[..., Rows]) -> None:
    folder = write("test.jsonl", ASKED, SECOND).parent
    write("train.jsonl", FIRST, SECOND, ASKED)
    rows = prepare("gsm8k", "--from", folder)
    assert [row["answer"] for row in rows] == ["1002", "-2"]
    assert rows[0]["question"] == {
        "turns": ["Q: Tom has 2 nuts and 1,000 more. How many?\nA: Let's think step by step."],
        "id": "gsm8k-0001",
        "group": "gsm8k",
        "scorer": "number",
    }
    rows = prepare("gsm8k", "--from", folder, "--shots", "2")
    assert rows[0]["question"]["turns"] == [
        "Question: 1+1?\nAnswer: It is 2.\n#### 2\n\n"
        "Question: 3-5?\nAnswer: It is -2.\n#### -2\n\n"
        "Question: Tom has 2 nuts and 1,000 more. How many?\nAnswer:"
    ]
    rows = prepare("gsm8k", "--from", folder, "--shots", "2", "--max-characters", "120")
    assert rows[0]["question"]["turns"][0].count("Question:") == 2


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "?"}, "test.jsonl:2: the key 'answer' is missing"),
        ({"question": "?", "answer": "It is 5."}, "test.jsonl:2: 'answer' must end in a line '#### NUMBER'"),
        ({"question": ["?"], "answer": "#### 5"}, "test.jsonl:2: 'question' must be a text"),
    ],
)
def test_malformed_lines(row: Any, message: str, write: Callable[..., Path], refused: Callable[..., str]) -> None:
    assert message in refused("gsm8k", "--from", write("test.jsonl", ASKED, row))


def test_too_few_worked_solutions(write: Callable[..., Path], refused: Callable[..., str]) -> None:
    files = ("--from", write("test.jsonl", ASKED), "--dev", write("train.jsonl", FIRST))
    assert "there are 1 worked examples for gsm8k, --shots asks for 2" in refused("gsm8k", *files, "--shots", "2")


@pytest.mark.slow
def test_the_public_files(shared: Path, prepare: Callable[..., Rows]) -> None:
    rows = prepare("gsm8k", "--from", shared / "data" / "gsm8k", "--shots", "8")
    assert len(rows) == 660
    assert all(row["question"]["turns"][0].count("Question: ") == 9 for row in rows)
