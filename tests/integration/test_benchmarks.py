"""Benchmarks from the source files to the leaderboard: conversion, test environment, columns."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.benchmarks.registry import categories
from tests.support.counting_api import CountingAPI
from tests.support.harness import EXAMPLE, LONGEST, Workplace

DATASET = Path("examples") / EXAMPLE.name / "dataset"

SPEC_BENCH = [
    {
        "question_id": number,
        "category": category,
        "turns": [f"{number}: {category}?", "And?"][: 1 + (category == "coding")],
    }
    for number, category in enumerate(("coding", "translation", "rag", "translation", "qa", "stem"), start=1)
]
MMLU = [
    {"subject": subject, "question": f"{letter}?", "choices": list("wxyz"), "answer": letter}
    for subject in ("anatomy", "abstract_algebra")
    for letter in "ABC"
]
SOURCES: dict[str, dict[str, list[dict[str, Any]]]] = {
    "mt_bench": {"question.jsonl": SPEC_BENCH[:1]},
    "spec_bench": {"question.jsonl": SPEC_BENCH},
    "mmlu": {"test.jsonl": MMLU, "dev.jsonl": MMLU[:3] * 2 + MMLU[3:] * 2},
}


def prepare_as_told(workplace: Workplace, name: str) -> list[dict[str, Any]]:
    """Run the command that the test environment's comment names, with files of our own; the rows."""
    environment = workplace.example / "testenv" / f"testenv_{name}.yaml"
    comment = re.search(r"^ +# +(specdec data prepare .*)$", environment.read_text(encoding="utf-8"), re.MULTILINE)
    assert comment is not None
    _, *arguments = shlex.split(comment.group(1))
    if "--from" in arguments:
        del arguments[arguments.index("--from") :][:2]
    source = workplace.root / "source"
    source.mkdir()
    for file, rows in SOURCES[name].items():
        (source / file).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    specdec(workplace.root, *arguments, "--from", str(source))
    path = workplace.root / DATASET / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def specdec(folder: Path, *arguments: str) -> str:
    command: Sequence[str] = [sys.executable, "-m", "ianvs_specdec.commands.cli", *arguments]
    return subprocess.run(command, cwd=folder, check=True, timeout=LONGEST, capture_output=True, text=True).stdout


@pytest.fixture
def job(workplace: Workplace, api: CountingAPI) -> Workplace:
    """Edge only, answered by the API."""
    workplace.algorithms("EdgeOnly")
    workplace.on_api(api.url)
    train = workplace.root / DATASET / "knowledge" / "train.jsonl"
    train.parent.mkdir(parents=True)
    train.write_text((EXAMPLE / "dataset" / "knowledge" / "train.jsonl").read_text(encoding="utf-8"), encoding="utf-8")
    return workplace


def use(job: Workplace, name: str) -> None:
    path = job.example / "benchmarkingjob.yaml"
    text = path.read_text(encoding="utf-8").replace("/testenv.yaml", f"/testenv_{name}.yaml")
    text = re.sub(r"sort_by: .*", 'sort_by: [ { "Throughput": "descend" } ]', text)
    path.write_text(re.sub(r"^( +metrics: ).*", r'\1[ "Throughput" ]', text, flags=re.MULTILINE), encoding="utf-8")


@pytest.mark.parametrize("name", SOURCES)
def test_a_test_environment_from_its_command_to_the_leaderboard(job: Workplace, name: str) -> None:
    rows = prepare_as_told(job, name)
    use(job, name)
    outcome = job.ianvs()
    assert outcome.code == 0, outcome.output
    (row,) = job.leaderboard().values()
    assert float(row["Queries"]) == len(rows)
    answers = [answer["result"] for answer in job.answers("EdgeOnly", "api")]
    assert [answer["group"] for answer in answers] == [row["question"]["group"] for row in rows]
    shown = {column: cell for column, cell in row.items() if ": " in column and not column.startswith("Speedup")}
    for column, cell in shown.items():
        metric, _, category = column.partition(": ")
        own = [answer for answer in answers if answer["group"] in categories().get(category, ())]
        if metric == "Throughput":
            tokens = sum(answer["usage"]["completion_tokens"] for answer in own)
            seconds = sum(answer["perf"]["latency"] for answer in own)
            assert (float(cell) if cell else None) == (pytest.approx(tokens / seconds, rel=1e-3) if own else None)
        if metric == "Accuracy" and "CI95" not in column:
            golds = {row["question"]["id"]: row["answer"] for row in rows}
            right = [100.0 * (answer["prediction"] == golds[answer["query_id"]]) for answer in own]
            expected = sum(right) / len(right) if own and name == "mmlu" else None
            assert (float(cell) if cell else None) == (None if expected is None else pytest.approx(expected, 1e-5))
    assert any(column.startswith("Accuracy: " if name != "spec_bench" else "Throughput: ") for column in shown)
