"""The stream that drifts: what the command makes, in the order that a drift needs, and nothing is in it twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from ianvs_specdec.benchmarks.world import questions, skills
from ianvs_specdec.benchmarks.world.drift import ROUND
from ianvs_specdec.commands.cli import main
from tests.support.lines import rows_in
from tests.support.paths import EXAMPLE

DATASET = EXAMPLE / "dataset"


def asked(file: str) -> list[tuple[str, str]]:
    """Subject and question of each row."""
    rows = [row["question"] for row in rows_in(DATASET / file)]
    return [(row["group"], row["turns"][0].split("\nA. ")[0]) for row in rows]


@pytest.mark.parametrize(("name", "file"), [("drift", "drift/test.jsonl"), ("drift-train", "drift/train.jsonl")])
def test_the_shipped_files_are_what_the_command_writes(name: str, file: str, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    assert main(["data", "prepare", "world", "--set", name, "--out", str(out)]) == 0
    assert out.read_bytes() == (DATASET / file).read_bytes()


def test_skills_then_facts_then_skills() -> None:
    is_skill = [subject in skills.SKILLS for subject, _ in asked("drift/test.jsonl")]
    assert is_skill == [True] * ROUND + [False] * 2 * ROUND + [True] * ROUND
    assert {subject for subject, _ in asked("drift/test.jsonl")} == set(questions.SUBJECTS)
    assert {subject for subject, _ in asked("drift/train.jsonl")} == set(skills.SKILLS)


def test_no_question_is_there_twice() -> None:
    files = ("drift/test", "drift/train", "knowledge/test")
    stream, train, test = ([text for _, text in asked(f"{name}.jsonl")] for name in files)
    together = [*stream, *train]
    assert len(set(together)) == len(together)
    assert not set(together) & set(test)
