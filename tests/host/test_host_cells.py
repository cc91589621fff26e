"""Leaderboards hold what plugins and YAML name: no cell of theirs is a formula."""

from __future__ import annotations

import csv
import io

import pytest

from core.common.cells import csv_text, unescaped
from tests.host.host_job import Job

FORMULAS = ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(1)", "\t=1", "\r=1", "\n=1", "-", "=", "'=1", "''+x"]
PLAIN = ["", "a=b", "-1", "+1.5", "-1e-3", "nan", "'tis", "edge-only"]


@pytest.mark.parametrize("text", FORMULAS + PLAIN)
def test_a_formula_becomes_a_text_and_a_number_stays(text: str) -> None:
    (row,) = csv.reader(io.StringIO(csv_text([[text, -1.5]]), newline=""))
    assert row == ["'" + text if text in FORMULAS else text, "-1.5"]
    assert unescaped(row[0]) == text


def test_a_leaderboard_with_formulas_is_the_same_after_many_runs(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    job.plugin("algo/edge_model.py", (job.folder / "algo/edge_model.py").read_text().replace("at=0,", "at=0, depth=0,"))
    job.hyperparameters(0, tag=["=cmd()", "@x", "-1"], depth=[-3])
    assert job.run() == 0
    assert "=cmd()" in capsys.readouterr().out
    for which in ("all", "selected"):
        found = job.leaderboard(which)
        assert sorted(row["edgemodel-tag"] for row in found) == ["'=cmd()", "'@x", "-1"]
        assert {row["edgemodel-depth"] for row in found} == {"-3"}
    before = job.leaderboard()
    job.hyperparameters(0, tag=["@x"], depth=[-3])
    assert job.run() == 0
    after = job.leaderboard()
    key = "edgemodel-tag"
    assert sorted(row[key] for row in after) == sorted(row[key] for row in before)
    assert {row["url"] for row in after} == {row["url"] for row in before}
