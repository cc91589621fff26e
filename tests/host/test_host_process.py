"""What needs a process of its own: Ctrl-C and SIGTERM, rows that hang, and a terminal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.host.host_job import Job

SLEEPER = """
import sys, time
def __init__(self, stubborn=False, quick=False):
    self.stubborn, self.quick = stubborn, quick
def predict(self, data):
    if self.quick or data.split()[1] in "012":
        return {"prediction": "A"}
    while True:
        try:
            self.sys.stdout.write("ready\\n")  # in one piece, among other threads
            self.sys.stdout.flush()
            self.time.sleep(60)
        except BaseException:
            if not self.stubborn:
                raise
def cleanup(self):
    print("cleaned up", flush=True)
"""


@pytest.mark.skipif(os.name == "nt", reason="sends signals to one process")
@pytest.mark.parametrize(("number", "stubborn"), [(signal.SIGINT, False), (signal.SIGTERM, True)])
def test_ctrl_c_and_sigterm(job: Job, number: signal.Signals, stubborn: bool) -> None:
    """The time limit is the interruption's own: a plugin that swallows it is ended by the watchdog."""
    job.define("algo/edge_model.py", "EdgeModel", SLEEPER)
    job.hyperparameters(0, quick=[True, False], stubborn=[stubborn])
    command = [sys.executable, "-m", "core.cmd.benchmarking", "-f", job.save()]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    while "ready" not in process.stdout.readline():
        assert process.poll() is None, process.communicate()
    started = time.monotonic()
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    seconds = time.monotonic() - started
    assert process.returncode == 128 + number
    told = "ianvs: interrupted; 1 of 2 test cases are on the leaderboard in workspace/job/rank; 3 of 10 answers"
    last = err.strip().splitlines()[-1]
    assert last.startswith(told)
    assert "run the same command again to continue" in last
    assert "Traceback" not in err
    assert ("cleaned up" in out) is not stubborn
    assert len(job.leaderboard()) == 1
    assert seconds < 20, "the process must not wait for the plugin"


@pytest.mark.slow
def test_a_row_that_hangs_does_not_keep_the_process_from_ending(job: Job) -> None:
    body = """
    import time
    def predict(self, data):
        if data.split()[1] == "0":
            self.time.sleep(3600)
        raise RuntimeError("no answer")
    """
    job.define("algo/edge_model.py", "EdgeModel", body)
    job.job["concurrency"] = 2
    code = "import core.runner.local as local; local.LAST_WAIT = 0.1; from core.cmd.start import main; exit(main())"
    command = [sys.executable, "-c", code, "-f", job.save()]
    outcome = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=120)
    assert outcome.returncode == 1
    assert "failed: row 2 of 10: RuntimeError: no answer" in outcome.stderr


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="sends SIGINT to one process")
def test_ctrl_c_while_all_threads_hang(job: Job) -> None:
    job.define("algo/edge_model.py", "EdgeModel", SLEEPER)
    job.hyperparameters(0, stubborn=[True])
    job.job["concurrency"] = 4
    command = [sys.executable, "-m", "core.cmd.benchmarking", "-f", job.save()]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for _ in range(4):
        assert "ready" in process.stdout.readline()
    started = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "cleaned up" in out
    assert err.strip().splitlines()[-1].startswith("ianvs: interrupted; 0 of 1 test cases are on the leaderboard")
    assert "Traceback" not in err
    assert time.monotonic() - started < 20, "the process must not wait for its threads"
