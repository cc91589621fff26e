"""What a user sees on a terminal, and that a log file gets nothing of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from core.storymanager.table import print_table
from tests.host.host_job import METRICS, Job
from tests.support.terminal import lines_of, on_terminal

COMMAND = [sys.executable, "-m", "core.cmd.benchmarking", "-f"]
SLOW = """
import time
def answer(who, data):
    time.sleep(0.03)
    return {"completion": who, "prediction": data[-1], "usage": {"completion_tokens": 50}, "perf": {"latency": 0.03}}
"""
NAMES = ["Mean Accepted Tokens", "Time to First Token", "Internal Token Latency", "Acceptance Rate", "Throughput",
         "Work Amplification", "Routing Overhead", "Cloud Cost", "Lossless", "Router APGR"]  # fmt: skip


@pytest.fixture
def wide(job: Job) -> Job:
    """A job of two test cases whose table has many columns."""
    job.plugin("algo/answers.py", SLOW)
    more = "".join(
        f'\n@ClassFactory.register(ClassType.GENERAL, alias="{name}")\ndef metric{i}(y_true, y_pred):\n'
        f'    return 100.0 if "{name}" == "Lossless" else {i} + len(y_pred[0][1]["completion"]) / 7\n'
        for i, name in enumerate(NAMES)
    )
    job.plugin("env/metrics.py", METRICS + more)
    job.env["metrics"] += [{"name": name, "url": "env/metrics.py"} for name in NAMES]
    job.hyperparameters(0, tag=["autoregressive", "PromptLookup"])
    return job


def test_a_terminal_shows_a_live_line_and_a_table_that_fits(wide: Job) -> None:
    columns = 80
    code, text = on_terminal([*COMMAND, wide.save()], columns, wide.folder, os.environ)
    assert code == 0, text
    shown = lines_of(text)
    live = [line for line in shown if "/10 queries" in line]
    assert [line for line in live if len(line) > columns] == []
    assert any(re.match(r"[1-9]/10 queries, [\d,]+ token/s, edge \d, cloud 0, 00:0\d left \|", one) for one in live)
    table = shown[next(i for i, line in enumerate(shown) if line.startswith("rank ")) :]
    assert all(len(line) <= columns for line in table if "/" not in line), "paths may be longer"
    joined = " ".join(table)
    for name in NAMES:
        assert all(word in joined for word in name.split()), name
    assert "the same in all rows: " in joined
    assert "Lossless 100" in joined
    assert "all columns are in workspace/job/rank/all_rank.csv" in joined.replace("./", "")


def test_what_is_not_a_terminal_gets_nothing_live(wide: Job) -> None:
    done = subprocess.run([*COMMAND, wide.save()], cwd=wide.folder, capture_output=True, text=True, check=True)
    assert "\r" not in done.stdout + done.stderr
    assert " left |" not in done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    (heading,) = [line for line in done.stdout.splitlines() if line.startswith("rank ")]
    assert "edgemodel-tag" in heading, "all in one table"


def test_a_warning_stands_above_the_live_line(wide: Job) -> None:
    wide.plugin(
        "algo/answers.py",
        SLOW.replace("time.sleep", "import logging\n    logging.warning('mind %s', data[:3])\n    time.sleep"),
    )
    code, text = on_terminal([*COMMAND, wide.save()], 100, wide.folder, os.environ)
    assert code == 0
    assert all(line.strip() == "mind que" for line in lines_of(text) if "mind que" in line and "queries" not in line)
    assert "|mind" not in text


@pytest.mark.parametrize("columns", [20, 100])
def test_no_line_is_longer_than_the_terminal(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    header = ["rank", "algorithm", *NAMES, "paradigm", "edgemodel", "edgemodel-model", "time", "url"]
    rows = [
        [str(i), f"algorithm-{i}", *["0.123456"] * 9, "", "jointinference", f"Algorithm{i}", "模型" * 40, "t", "u" * 90]
        for i in range(3)
    ]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", str(columns))
    assert print_table("\n".join(",".join(row) for row in [header, *rows]))
    from wcwidth import wcswidth

    table = capsys.readouterr().out.splitlines()
    assert max(map(wcswidth, table)) <= columns
    assert "Algorithm1" not in "\n".join(table), "the algorithm says it already"


def test_each_part_of_a_folded_table_tells_the_rows_apart(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    header = ["rank", "algorithm", *NAMES, "paradigm", "edgemodel-backend", "cloudmodel-backend", "time", "url"]
    backends = [("autoregressive", "DraftModelSpecDec"), ("autoregressive", "EagleSpecDec"), ("LadeSpecDec", "none")]
    algorithms = ["cloud-only", "cloud-only", "learned-router"]
    rows = [
        [str(rank), algorithms[rank - 1], *[f"{rank}.123"] * len(NAMES), "jointinference", *pair, "t", "u" * 90]
        for rank, pair in enumerate(backends, 1)
    ]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    assert print_table("\n".join(",".join(row) for row in [header, *rows]))
    parts = [part for part in capsys.readouterr().out.split("\n\n") if part.startswith("rank")]
    assert len(parts) > 1
    assert all(name in part for part in parts for _, name in backends)
