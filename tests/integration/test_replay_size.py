"""The memory of a replay (``bench.replay``) is proportional to the number of rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.harness import EXAMPLE, LONGEST

ROWS = 1755
"""An eighth of MMLU's test questions."""
MEMORY = 60 + (400 - 60) * ROWS / 14042
"""MB: what a job of no rows takes, and a share of the 400 that all of MMLU may take."""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "wait4"), reason="the system does not tell the memory of one process")
def test_memory_is_in_proportion_to_the_rows(tmp_path: Path) -> None:
    words = ["the", "of", "which", "one", "follows", "from", "a", "given", "number", "when", "it", "is", "known"]
    questions = [
        f"{number}: {' '.join(words[(number + i) % len(words)] for i in range(60))}?" for number in range(ROWS)
    ]
    plain = _peak(questions, tmp_path / "plain.jsonl")
    assert plain < MEMORY
    assert _peak([*questions, "wide " * 20_000], tmp_path / "wide.jsonl") < plain + 5


def _peak(questions: list[str], data: Path) -> float:
    """MB that the replay of these questions takes."""
    row = {"subject": "some_subject", "choices": ["none", "one", "two", "all of them"], "answer": "B"}
    data.write_text("".join(json.dumps({**row, "question": text}) + "\n" for text in questions), encoding="utf-8")
    command = [sys.executable, "-m", "bench.replay", "--repeats", "1", "--data", str(data)]
    done = subprocess.run(command, cwd=EXAMPLE.parents[1], capture_output=True, text=True, timeout=LONGEST, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows, *_, peak, _ = done.stdout.splitlines()[-2].split()
    assert int(rows) == len(questions)
    return float(peak)
