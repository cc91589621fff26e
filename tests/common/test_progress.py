"""What a long command says of how far it is."""

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
    """The monotonic clock, to be set."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_rate_and_time_left_count_what_is_new(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    told = Progress("answers", {"edge": 100})
    # The first that is new loads a model: the clock runs from its end.
    for had, seconds in [(True, 0.0)] * 10 + [(False, 14.0)] + [(False, 10.0)] * 4:
        clock[0] += seconds
        told.step("edge", had)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "edge: 12 of 100 answers, 10 from the journal, 0.1/s, 14:40 left",
        "edge: 14 of 100 answers, 10 from the journal, 0.1/s, 14:20 left",
    ]


def test_each_kind_ends_with_a_line(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    told = Progress("answers", {"edge": 2, "cloud": 3000})
    for kind in ("edge", "edge", "cloud", "cloud"):
        told.step(kind)
        clock[0] += 4.0
    told.close()
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["edge: 2 of 2 answers, 0.1/s", "cloud: 2 of 3000 answers, 0.1/s, 6:39:44 left"]
    assert told.done == 4


def test_nothing_is_said_of_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    Progress("answers", {"edge": 2}).close()
    assert capsys.readouterr().err == ""


SCRIPT = """
import sys, time
from ianvs_specdec.common.progress import LiveLine, Progress, print_line
told = Progress("answers", {"edge": 30})
for number in range(30):
    told.step("edge")
    time.sleep(0.03)
told.close()
live = LiveLine()
for number in range(8):
    live.at(number / 8, f"step {number}")
    if number == 4:
        print_line("12:00:00 half of it", sys.stdout)
    time.sleep(0.1)
live.close()
"""


@pytest.mark.slow
def test_a_terminal_has_one_line_that_is_renewed(tmp_path: Path) -> None:
    code, text = on_terminal([sys.executable, "-c", SCRIPT], 40, tmp_path, os.environ)
    assert code == 0, text
    shown = [line.rstrip() for line in lines_of(text)]
    assert all(len(line) <= 40 for line in shown)
    assert any(re.match(r"edge: \d+ of 30 answers, [\d.]+/s, 0:0\d", line) for line in shown), shown
    assert any(line.startswith("edge: 30 of 30 answers, ") for line in shown)
    assert any(re.match(r"step \d \|", line) for line in shown)
    assert "12:00:00 half of it" in shown, "a line of its own"


@pytest.mark.slow
def test_no_terminal_has_no_live_line(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert "\r" not in done.stderr + done.stdout
    assert "step" not in done.stderr
    assert done.stdout == "12:00:00 half of it\n"
