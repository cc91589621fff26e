"""Unmodified jobs on upstream Ianvs, if ``IANVS_UPSTREAM_PYTHON`` is a Python that has it."""

import csv
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ianvs_specdec.report.collect import collect
from tests.host.upstream_routing import write_routing_example

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLE = Path("examples") / "cloud-edge-speculative-decoding"
UPSTREAM = "from core.cmd.benchmarking import main; main()"
OURS = "import sys; from core.cmd.start import main; sys.exit(main())"
QUESTIONS = 8
BACKENDS = ("edgemodel-backend", "cloudmodel-backend")
SAME = ("Accuracy", "Edge Ratio", "Lossless", "Queries", "Cloud Cost", "Edge Completion Tokens", "Router APGR")
"""Columns that no timing is in."""


@pytest.fixture
def upstream() -> str:
    python = os.environ.get("IANVS_UPSTREAM_PYTHON", "")
    if not python:
        pytest.skip("IANVS_UPSTREAM_PYTHON does not name a Python that has upstream Ianvs (see docs/upstream.md)")
    return python


def run(folder: Path, python: str, code: str, job: str) -> list[dict[str, str]]:
    """The rows that the job leaves on its leaderboard, by what tells them apart."""
    command = [python, "-c", code, "-f", job]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    (leaderboard,) = folder.glob("workspace*/*/rank/all_rank.csv")
    with leaderboard.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return sorted(rows, key=lambda row: [row.get(name, "") for name in ("algorithm", *BACKENDS)])


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_the_example_equals_that_of_upstream(upstream: str, tmp_path: Path) -> None:
    found = {}
    for name, python, code in (("upstream", upstream, UPSTREAM), ("ours", sys.executable, OURS)):
        shutil.copytree(REPOSITORY / EXAMPLE, tmp_path / name / EXAMPLE)
        data = tmp_path / name / EXAMPLE / "dataset" / "knowledge" / "test.jsonl"
        lines = data.read_text(encoding="utf-8").splitlines(keepends=True)
        data.write_text("".join(lines[:QUESTIONS]), encoding="utf-8")
        found[name] = run(tmp_path / name, python, code, str(EXAMPLE / "benchmarkingjob.yaml"))
    assert len(found["upstream"]) == len(found["ours"]) == 12
    for theirs, ours in zip(found["upstream"], found["ours"], strict=True):
        for column in ("algorithm", *BACKENDS):
            assert theirs[column] == ours[column]
        for column in SAME:
            cells = [row[column] and float(row[column]) for row in (theirs, ours)]
            assert cells[0] == cells[1], (theirs["algorithm"], column)
    assert {float(row["Lossless"]) for row in found["upstream"]} == {100.0}
    workspace = tmp_path / "upstream" / "workspace"
    assert len(list(workspace.glob("*/journal.sqlite"))) == 1
    document = collect(workspace)
    assert [case["answered"] for case in document["cases"]] == [QUESTIONS] * 22
    # What the report computes from the answers is what the leaderboard says: each row has its own answers.
    for case in document["cases"]:
        assert case["notes"] == []
        assert case["figures"]["Queries"] == QUESTIONS


@pytest.mark.slow
def test_the_cloud_edge_llm_example_equals_that_of_upstream(upstream: str, tmp_path: Path) -> None:
    found = {}
    for name, python, code in (("upstream", upstream, UPSTREAM), ("ours", sys.executable, OURS)):
        (tmp_path / name).mkdir()
        job = write_routing_example(tmp_path / name)
        found[name] = run(tmp_path / name, python, code, job)
    columns = [name for name in found["ours"][0] if name not in ("rank", "time", "url")]
    kept = {name: [[row[column] for column in columns] for row in rows] for name, rows in found.items()}
    assert kept["upstream"] == kept["ours"]
