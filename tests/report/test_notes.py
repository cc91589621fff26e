"""A note that holds for many test cases is one line."""

from __future__ import annotations

import json

import pytest

from ianvs_specdec.commands.cli import main
from ianvs_specdec.report.notes import told
from tests.support.workspace import Bench


def doubtful(bench: Bench) -> None:
    for share, folder in enumerate(sorted(bench.folder.glob("*/*/config.yaml")), 70):
        load = [{"doubt": f"other programs took {share}% of the processors"}]
        (folder.parent / "environment.json").write_text(json.dumps({"load": load}), encoding="utf-8")


def test_one_line_for_each_kind() -> None:
    cases = [
        {"name": "A", "notes": ["x is empty: why", "busy: 7%"]},
        {"name": "B", "notes": ["x is empty: why"]},
        {"name": "C", "notes": ["busy: 9%", "no environment.json"]},
    ]
    assert told(cases) == [
        "2 of 3 test cases: x is empty: why",
        "2 of 3 test cases: busy: 7% (of the first, A)",
        "C: no environment.json",
    ]
    assert told([]) == []


def test_the_screen_tells_a_busy_machine_once(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    doubtful(bench)
    assert main(["report", "workspace"]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if "doubtful" in line]
    assert len(lines) == 1
    assert lines[0].startswith("note: 4 of 4 test cases: times are doubtful: other programs took 7")
