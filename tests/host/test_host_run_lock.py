"""One run at a time in a workspace, and what killed runs leave in it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from core.common import run_lock
from core.common.run_lock import HOLDER, LOCK
from tests.host.host_job import Job

SLOW = """
def predict(self, data):
    import os, sys
    if data.split()[1] == "4" and "WAITING" in os.environ:
        print("ready", flush=True)
        sys.stdin.readline()
    return {"prediction": "A"}
"""


@contextmanager
def running(job: Job) -> Iterator[subprocess.Popen[str]]:
    """A run in another process that has come to its fifth row, where it waits for a line."""
    job.define("algo/edge_model.py", "EdgeModel", SLOW)
    command = [sys.executable, "-m", "core.cmd.benchmarking", "-f", job.save()]
    environment, pipe = {**os.environ, "WAITING": "1"}, subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment) as process:
        assert process.stdout is not None
        assert "ready" in process.stdout.readline(), process.communicate()
        yield process
        process.kill()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_lock, "TIMEOUT", 0.01)


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_a_killed_run_holds_nothing_and_leaves_nothing_half_written(job: Job) -> None:
    with running(job) as first:
        first.kill()
        first.wait()
    workspace = job.folder / "workspace" / "job"
    stale = [f"rank/.selected_rank.csv.{first.pid}.tmp", f".digests.json.{first.pid}.abc.tmp"]
    ours = f"rank/.all_rank.csv.{os.getppid()}.tmp"
    (workspace / "rank").mkdir()
    for name in (*stale, ours, "rank/notes.1.tmp"):
        (workspace / name).write_text("half")
    assert job.run() == 0
    assert [name for name in stale if (workspace / name).exists()] == []
    assert (workspace / ours).exists(), "its process lives"
    assert (workspace / "rank/notes.1.tmp").exists(), "it is not ours"


def test_a_folder_that_cannot_be_claimed_is_one_message(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    (job.folder / "workspace" / "job" / LOCK).mkdir(parents=True)
    assert job.run() == 1
    error = capsys.readouterr().err
    assert "cannot write workspace" in error.replace("\\", "/")
    assert "internal error" not in error


@pytest.mark.slow
def test_who_holds_it_may_be_unknown(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    with running(job):
        for text in ("", "5", "{}", '{"pid": "1"}', "[" * 100_000):
            (job.folder / "workspace" / "job" / HOLDER).write_text(text)
            assert job.run() == 1
            error = capsys.readouterr().err
            assert "is in use by another run. Wait until it has ended, or change workspace or name" in error
        assert job.run("check") == 0, "a check disturbs nobody"


@pytest.mark.skipif(os.name != "posix", reason="limits the size of files")
def test_a_full_disk_leaves_whole_answers_only(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.support.full_disk import files_end_at

    answer = "def answer(who, data):\n    return {'prediction': data[-1], 'completion': 'x' * 1000}\n"
    job.plugin("algo/answers.py", answer)
    with files_end_at(7_000):
        assert job.run() == 1
    assert "cannot write " in capsys.readouterr().err
    (partial,) = (job.folder / "workspace").rglob("*.partial.jsonl")
    lines = partial.read_bytes().splitlines(keepends=True)
    assert lines
    assert all(json.loads(line)["index"] == number for number, line in enumerate(lines))


@pytest.mark.skipif(os.name != "posix", reason="sends SIGTERM")
def test_sigterm_before_a_run_is_said(tmp_path: Path) -> None:
    code = "import os, signal, sys\nfrom core.cmd import start\n"
    code += "sys.modules['core.cmd.benchmarking'] = type(sys)('core.cmd.benchmarking')\n"
    code += "sys.modules['core.cmd.benchmarking'].main = lambda: os.kill(os.getpid(), signal.SIGTERM)\nstart.main()\n"
    outcome = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert outcome.returncode == 128 + signal.SIGTERM
    assert outcome.stderr == "ianvs: interrupted; no test case was running\n"
