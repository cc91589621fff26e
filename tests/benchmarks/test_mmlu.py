"""MMLU: prompts character for character as in the original evaluation, subjects, categories, worked examples."""

from __future__ import annotations

import csv
import functools
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.benchmarks import mmlu
from ianvs_specdec.benchmarks.rows import query_of

Rows = list[dict[str, Any]]

QUESTION = {"subject": "abstract_algebra", "question": "2 + 2?", "choices": ["3", "4", "5", "6"], "answer": "B"}
ZERO_SHOT = (
    "The following are multiple choice questions (with answers) about  abstract algebra.\n\n"
    "2 + 2?\nA. 3\nB. 4\nC. 5\nD. 6\nAnswer:"
)

FIRST_OF_ABSTRACT_ALGEBRA = """The following are multiple choice questions (with answers) about  abstract algebra.

Find all c in Z_3 such that Z_3[x]/(x^2 + c) is a field.
A. 0
B. 1
C. 2
D. 3
Answer: B

"""
"""Written down from the original repository's files: the heading and the first worked example."""


def expected(subject: str, dev: list[list[str]], question: list[str], shots: int) -> str:
    """The prompt as its published description has it: columns as in the original CSV, lines joined one by one."""
    lines = ["The following are multiple choice questions (with answers) about  " + subject.replace("_", " ") + ".", ""]
    for *text, answer in dev[:shots]:
        lines += [text[0], *map(". ".join, zip("ABCD", text[1:], strict=True)), f"Answer: {answer}", ""]
    lines += [question[0], *map(". ".join, zip("ABCD", question[1:5], strict=True)), "Answer:"]
    return "\n".join(lines)


@functools.cache
def public(shared: Path, split: str) -> Rows:
    with gzip.open(shared / "data" / "mmlu" / f"mmlu_{split}.jsonl.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def original(shared: Path, split: str, subject: str) -> list[list[str]]:
    """The rows of a subject in the columns of the original CSV."""
    rows = public(shared, split)
    return [[r["question"], *r["choices"], r["answer"]] for r in rows if r["subject"] == subject]


@pytest.mark.parametrize(("subject", "shots"), [("abstract_algebra", 5), ("professional_law", 0), ("virology", 5)])
def test_prompts_are_the_originals(
    subject: str, shots: int, shared: Path, tmp_path: Path, prepare: Callable[..., Rows]
) -> None:
    test, dev = (original(shared, split, subject) for split in ("test", "dev"))
    for split, rows in (("test", test), ("dev", dev)):
        (tmp_path / "data" / split).mkdir(parents=True)
        with (tmp_path / "data" / split / f"{subject}_{split}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows(rows)
    rows = prepare("mmlu", "--from", tmp_path / "data", "--shots", str(shots))
    assert [row["question"]["turns"] for row in rows] == [[expected(subject, dev, row, shots)] for row in test]
    assert [row["answer"] for row in rows] == [row[5] for row in test]
    assert {row["question"]["group"] for row in rows} == {subject}
    if (subject, shots) == ("abstract_algebra", 5):
        assert all(row["question"]["turns"][0].startswith(FIRST_OF_ABSTRACT_ALGEBRA) for row in rows)
        assert rows[0]["question"]["turns"][0].count("Answer: ") == 5


def _compressed(path: Path) -> Path:
    path.with_suffix(".jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
    return path.with_suffix(".jsonl.gz")


def test_formats_give_the_same_prompt(write: Callable[..., Path], prepare: Callable[..., Rows]) -> None:
    files = [
        write("t.jsonl", QUESTION, "", {**QUESTION, "answer": 2}),
        _compressed(write("u.jsonl", QUESTION, {**QUESTION, "answer": "C"})),
        write("abstract_algebra_test.csv", "2 + 2?,3,4,5,6,B", "2 + 2?,3,4,5,6,C"),
        write("header.csv", "input,A,B,C,D,target,subject", *(f"2 + 2?,3,4,5,6,{x},abstract_algebra" for x in "BC")),
        write("t.json", json.dumps([QUESTION, {**QUESTION, "answer": "2"}])),
    ]
    for file in files:
        first, second = prepare("mmlu", "--from", file)
        assert first["question"]["turns"] == [ZERO_SHOT]
        assert (first["answer"], second["answer"]) == ("B", "C")
        assert first["question"]["group"] == "abstract_algebra"
        assert (first["question"]["id"], second["question"]["id"]) == ("abstract_algebra-0001", "abstract_algebra-0002")
        assert query_of(first["question"], first["answer"], 0).scorer == "choice"
    rows = prepare("mmlu", "--from", *files, "--limit", "4")
    assert [row["answer"] for row in rows] == ["B", "B", "C", "C"], "spread over all ten"


def test_options_are_unchanged(write: Callable[..., Path], prepare: Callable[..., Rows]) -> None:
    (row,) = prepare("mmlu", "--from", write("anatomy_test.csv", '"a, or\nb?",None,0.50,"1,000",NA,A'))
    assert row["question"]["turns"][0].endswith("\n\na, or\nb?\nA. None\nB. 0.50\nC. 1,000\nD. NA\nAnswer:")


def test_worked_examples_come_from_the_subject(
    write: Callable[..., Path], prepare: Callable[..., Rows], refused: Callable[..., str]
) -> None:
    other = {**QUESTION, "subject": "anatomy"}
    dev = write("d.jsonl", other, {**QUESTION, "question": "1 + 1?"}, {**QUESTION, "question": "1 + 2?"})
    arguments = ("mmlu", "--from", write("t.jsonl", QUESTION), "--dev", dev)
    heading, _, question = ZERO_SHOT.partition("\n\n")
    worked = [f"{text}\nA. 3\nB. 4\nC. 5\nD. 6\nAnswer: B\n\n" for text in ("1 + 1?", "1 + 2?")]
    (row,) = prepare(*arguments, "--shots", "2")
    assert row["question"]["turns"] == [f"{heading}\n\n{worked[0]}{worked[1]}{question}"]
    length = len(row["question"]["turns"][0])
    (first,) = prepare(*arguments, "--shots", "1")
    assert first["question"]["turns"] == [f"{heading}\n\n{worked[0]}{question}"]
    for limit, shown in ((length, worked), (length - 1, worked[:1]), (1, [])):
        (row,) = prepare(*arguments, "--shots", "2", "--max-characters", str(limit))
        assert row["question"]["turns"] == [f"{heading}\n\n{''.join(shown)}{question}"]
    message = refused(*arguments, "--shots", "3")
    assert "there are 2 worked examples for abstract_algebra, --shots asks for 3" in message
    assert "--dev" in refused("mmlu", "--from", write("t.jsonl", QUESTION), "--shots", "1")


def test_malformed_lines_are_named_by_file_and_line(write: Callable[..., Path], refused: Callable[..., str]) -> None:
    for line, message in (
        ("[1]", "t.jsonl:2: expected an object"),
        ({**QUESTION, "answer": "E"}, "t.jsonl:2: the answer must be a letter from A to D"),
        ({**QUESTION, "choices": ["1"]}, "t.jsonl:2: 'choices' must hold four options"),
        ({**QUESTION, "choices": "1234"}, "t.jsonl:2: 'choices' must be a list of four texts"),
        ({"subject": "a", "question": "?", "choices": list("1234")}, "t.jsonl:2: the key 'answer' is missing"),
        ({**QUESTION, "question": 3}, "t.jsonl:2: 'question' must be a text, not 3"),
    ):
        assert message in refused("mmlu", "--from", write("t.jsonl", QUESTION, line))
    good = "q,1,2,3,4,A"
    assert "x_test.csv:2: expected 6 columns" in refused("mmlu", "--from", write("x_test.csv", good, "a,b"))
    short = write("x.csv", "question,A,B,C,D,answer", good, "q,1")
    assert "x.csv:3: 2 columns, but the header" in refused("mmlu", "--from", short)


def test_every_subject_has_one_category(shared: Path) -> None:
    with gzip.open(shared / "data" / "mmlu" / "mmlu_dev.jsonl.gz", "rt", encoding="utf-8") as file:
        subjects = {json.loads(line)["subject"] for line in file}
    assert subjects == frozenset().union(*mmlu.CATEGORIES.values())
    # The sizes that the original's table has.
    sizes = {name: len(groups) for name, groups in mmlu.CATEGORIES.items()}
    assert sizes == {"STEM": 18, "humanities": 13, "social sciences": 12, "other": 14}


@pytest.mark.slow
def test_the_whole_public_test_set(shared: Path, prepare: Callable[..., Rows]) -> None:
    rows = prepare("mmlu", "--from", shared / "data" / "mmlu", "--shots", "5")
    assert len(rows) == 14042
    assert len({row["question"]["group"] for row in rows}) == 57
    assert all(row["question"]["turns"][0].count("\nAnswer:") == 6 for row in rows)
