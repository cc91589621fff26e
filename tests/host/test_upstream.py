"""The example folder, unmodified, on upstream Ianvs: where ``IANVS_UPSTREAM_PYTHON`` names a Python that has it."""

import csv
import os
import shutil
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLE = Path("examples") / "cloud-edge-speculative-decoding"
RUN = "from core.cmd.benchmarking import main; main()"


@pytest.fixture
def upstream() -> str:
    python = os.environ.get("IANVS_UPSTREAM_PYTHON", "")
    if not python:
        pytest.skip("no upstream Ianvs: IANVS_UPSTREAM_PYTHON does not name a Python that has it (see README.md)")
    return python


@pytest.mark.slow
def test_the_example_runs_unmodified_on_upstream_ianvs(upstream: str, tmp_path: Path) -> None:
    shutil.copytree(REPOSITORY / EXAMPLE, tmp_path / EXAMPLE)
    data = tmp_path / EXAMPLE / "dataset" / "knowledge" / "test.jsonl"
    data.write_text("".join(data.read_text(encoding="utf-8").splitlines(keepends=True)[:8]), encoding="utf-8")
    job = str(EXAMPLE / "benchmarkingjob.yaml")
    done = subprocess.run([upstream, "-c", RUN, "-f", job], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    (leaderboard,) = tmp_path.glob("workspace/*/rank/all_rank.csv")
    with leaderboard.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 22
    assert {row["Queries"] for row in rows} <= {"8", "8.0"}
    assert {float(row["Lossless"]) for row in rows} == {100.0}
    assert len(list(tmp_path.glob("workspace/*/journal.jsonl"))) == 1
