"""Progress lines of long commands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ianvs_specdec.common import progress
from ianvs_specdec.common.progress import Progress
from tests.support.terminal import lines_of, on_terminal


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A fake monotonic clock."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_rate_and_remaining_time_ignore_cached_steps(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    meter = Progress("answers", {"edge": 100})
    # Timing starts after the first new step, which loads a model.
    for cached, seconds in [(True, 0.0)] * 10 + [(False, 14.0)] + [(False, 10.0)] * 4:
        clock[0] += seconds
        meter.step("edge", cached)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "edge: 12 of 100 answers, 10 from the journal, 0.1/s, 14:40 left",
        "edge: 14 of 100 answers, 10 from the journal, 0.1/s, 14:20 left",
    ]


def test_each_kind_ends_with_a_line(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    meter = Progress("answers", {"edge": 2, "cloud": 3000})
    for kind in ("edge", "edge", "cloud", "cloud"):
        meter.step(kind)
        clock[0] += 4.0
    meter.close()
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["edge: 2 of 2 answers, 0.1/s", "cloud: 2 of 3000 answers, 0.1/s, 6:39:44 left"]
    assert meter.done == 4


def test_no_steps_print_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    Progress("answers", {"edge": 2}).close()
    assert capsys.readouterr().err == ""


SCRIPT = """
import sys, time
from ianvs_specdec.common.progress import LiveLine, Progress, print_line
meter = Progress("answers", {"edge": 30})
for number in range(30):
    meter.step("edge")
    time.sleep(0.03)
meter.close()
live = LiveLine()
for number in range(8):
    live.at(number / 8, f"step {number}")
    if number == 4:
        print_line("12:00:00 half of it", sys.stdout)
    time.sleep(0.1)
live.close()
"""


@pytest.mark.slow
def test_a_terminal_has_one_live_line(tmp_path: Path) -> None:
    code, text = on_terminal([sys.executable, "-c", SCRIPT], 40, tmp_path, os.environ)
    assert code == 0, text
    shown = [line.rstrip() for line in lines_of(text)]
    assert all(len(line) <= 40 for line in shown)
    assert any(re.match(r"edge: \d+ of 30 answers, [\d.]+/s, 0:0\d", line) for line in shown), shown
    assert any(line.startswith("edge: 30 of 30 answers, ") for line in shown)
    assert any(re.match(r"step \d \|", line) for line in shown)
    assert "12:00:00 half of it" in shown, "a separate line"


@pytest.mark.slow
def test_no_terminal_has_no_live_line(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert "\r" not in done.stderr + done.stdout
    assert "step" not in done.stderr
    assert done.stdout == "12:00:00 half of it\n"
