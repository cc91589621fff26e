"""A note that holds for many test cases is one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ianvs_specdec.commands.cli import main
from ianvs_specdec.report.collect import collect
from ianvs_specdec.report.notes import told
from ianvs_specdec.report.page import to_html
from tests.support.browser import Browser
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


@pytest.mark.slow
def test_the_page_tells_it_once_and_each_test_case_its_own(bench: Bench, tmp_path: Path, window: Browser) -> None:
    doubtful(bench)
    page = tmp_path / "page.html"
    page.write_text(to_html(collect(bench.folder)), encoding="utf-8")
    window.open(page)
    assert window.evaluate("document.querySelector('#notes').textContent.split('doubtful').length") == 2
    assert "other programs took 7" in window.evaluate("document.querySelector('#setup').textContent")


@pytest.mark.slow
def test_a_window_too_narrow_for_any_column_is_no_fault(bench: Bench, tmp_path: Path, window: Browser) -> None:
    page = tmp_path / "page.html"
    page.write_text(to_html(collect(bench.folder)), encoding="utf-8")
    window.open(page)
    window.send("Emulation.setDeviceMetricsOverride", width=20, height=900, deviceScaleFactor=1, mobile=False)
    window.evaluate("await new Promise((done) => setTimeout(done, 300)); return 1")
    failures, window.failures = window.failures, []
    assert failures == []
