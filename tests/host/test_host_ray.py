"""The runner ray on this machine alone: failures of rows and of workers, Ctrl-C, and a cluster that is not there."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import uuid
from contextlib import closing
from pathlib import Path

import pytest

from core.cmd.job import read_test_cases
from core.common.errors import WorkspaceError
from core.runner import journal
from core.runner.journal import Journal, Piece
from core.runner.worker import Setup, Worker
from core.testcasecontroller.testcase import plugin_environment
from tests.host.host_job import Job

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray: pip install ray")

EDGE = """
import os, sqlite3, time
from contextlib import closing
from pathlib import Path
from sedna.common.class_factory import ClassFactory, ClassType

@ClassFactory.register(ClassType.GENERAL, alias="EdgeModel")
class EdgeModel:
    loads = 0
    def __init__(self, how):
        self.how, self.journal = how, Path(os.environ["RESULT_SAVED_URL"]).parent / "journal.sqlite"
        if how == "unbuilt":
            raise OSError("no such model")
    def load(self):
        self.loads += 1
        if self.how == "late":
            try:
                Path("first").touch(exist_ok=False)
            except FileExistsError:
                Path("loading").touch()
                time.sleep(3600)
    def predict(self, data):
        number = int(data.split()[1])
        if number == 7 and self.how == "raise":
            raise RuntimeError("out of memory")
        if number == 7 and self.how == "die":
            time.sleep(0.5)  # Results of the rows before it are on their way still.
            os._exit(1)
        while self.how == "late" and not Path("loading").exists():
            time.sleep(0.01)
        if number == 9 and self.how == "late":
            Path("last").touch()
        if number >= 2 and self.how == "hang":
            Path("hanging").touch()
            time.sleep(3600)
        with closing(sqlite3.connect(self.journal)) as connection, connection:
            connection.execute("CREATE TABLE IF NOT EXISTS answers (id INTEGER PRIMARY KEY, text TEXT)")
            connection.execute("INSERT INTO answers VALUES (NULL, ?)", (f"{self.how} {number}",))
        worker = os.environ.get("IANVS_WORKER")
        return {"prediction": data[-1], "loads": self.loads, "worker": worker}
    def cleanup(self):
        if self.how == "answer":
            raise ValueError("already closed")
"""


def prepared(job: Job, *how: str) -> list[str]:
    """A job with one test case for each way to behave, and the command that runs it."""
    job.plugin("algo/edge_model.py", EDGE)
    job.hyperparameters(0, how=list(how))
    job.job["runner"] = {"name": "ray", "workers": 2, "shard": 3, "retries": 1}
    return [sys.executable, "-m", "core.cmd.benchmarking", "-f", job.save()]


def ray_processes(mark: str) -> set[int]:
    """The processes of Ray that were begun by a job with the environment variable ``mark``, and no other job's."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            raylet = b"raylet" in (folder / "cmdline").read_bytes().split(b"\0")[0]
            if raylet and f"{mark}=".encode() in (folder / "environ").read_bytes():
                found.add(int(folder.name))
        except OSError:
            continue
    return found


@needs_ray
@pytest.mark.slow
def test_what_fails_on_a_worker_is_told_and_costs_the_others_nothing(job: Job) -> None:
    command = prepared(job, "answer", "raise", "die", "unbuilt")
    # Another user's cluster: a job that names none has one of its own.
    others = {**os.environ, "RAY_ADDRESS": "127.0.0.1:1"}
    outcome = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=300, env=others)
    error = outcome.stderr.replace("\\", "/")
    assert outcome.returncode == 1, error
    assert "Traceback" not in error
    assert "cleanup of edgemodel EdgeModel: ValueError: already closed (algo/edge_model.py:" in error
    assert "how=raise failed: row 8 of 10: RuntimeError: out of memory (algo/edge_model.py:" in error
    assert "how=unbuilt failed: building edgemodel EdgeModel on " in error
    assert "OSError: no such model (algo/edge_model.py:" in error
    assert "reassigned, try 1 of 1" in error
    (died,) = [line for line in error.splitlines() if "how=die failed: row 8 of 10: a worker was lost" in line]
    assert died.endswith(", the last of 2 with this row; retries is 1")

    (row,) = job.leaderboard()
    assert (row["edgemodel-how"], row["Accuracy"]) == ("answer", "50.0")
    answers = [json.loads(line) for line in (job.case_folder() / "answers.jsonl").read_text().splitlines()]
    assert [answer["index"] for answer in answers] == list(range(10))
    assert all(answer["result"]["worker"] for answer in answers)
    assert {answer["result"]["loads"] for answer in answers} == {1}, "the modules were not kept between rows"
    lines = texts(job.folder / "workspace" / "job" / "journal.sqlite")
    assert sorted(line for line in lines if line.startswith("answer")) == [f"answer {i}" for i in range(10)]
    assert {f"die {i}" for i in range(7)} <= set(lines), "what a lost worker had answered before was not kept"


@needs_ray
@pytest.mark.slow
def test_a_job_does_not_wait_for_workers_that_still_load(job: Job) -> None:
    command = prepared(job, "late")
    outcome = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=300)
    assert outcome.returncode == 0, outcome.stderr
    assert (job.folder / "loading").exists(), "no other worker was loading"
    assert time.time() - (job.folder / "last").stat().st_mtime < 30


@needs_ray
@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_leave_no_process_behind(job: Job, number: signal.Signals) -> None:
    command, mark = prepared(job, "hang"), f"RUN_{uuid.uuid4().hex}"
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, mark: ""})
    deadline = time.monotonic() + 300
    while not (job.folder / "hanging").exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert ray_processes(mark), "this test does not see Ray's processes"
    process.send_signal(number)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 128 + number, error
    assert error.strip().splitlines()[-1].startswith("ianvs: interrupted; 0 of 1 test cases"), error
    assert "Traceback" not in error
    deadline = time.monotonic() + 60
    while ray_processes(mark) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not ray_processes(mark)


@pytest.mark.slow
@needs_ray
def test_a_cluster_that_is_not_there(job: Job, capfd: pytest.CaptureFixture[str]) -> None:
    prepared(job, "answer")
    with socket.socket() as silent:  # bound and not listening: nobody else can take the port
        silent.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        job.job["runner"]["address"] = address
        assert job.run() == 1
    error = capfd.readouterr().err
    assert f"failed: runner ray: no Ray cluster at {address}: " in error
    assert "Connection refused" in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("folder", "message"), [("", "job.yaml has other test cases there"), ("gone", "gone does not exist")]
)
def test_a_worker_without_the_jobs_files_says_so(job: Job, folder: str, message: str) -> None:
    prepared(job, "answer")
    worker = Worker(Setup(str(job.folder / folder), "job.yaml", read_test_cases, lambda piece: piece))
    with plugin_environment():
        _, failure = worker.open("another", {}, ())
    assert failure is not None
    assert f"{message} (every node needs the job's files" in failure.message


STATEMENT = "CREATE TABLE answers (id INTEGER PRIMARY KEY, text TEXT)"


def texts(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return [text for (text,) in connection.execute("SELECT text FROM answers ORDER BY id")]


def added(pieces: list[Piece]) -> list[str]:
    return [row[-1] for statement, rows in pieces for row in rows if statement == STATEMENT]


def write(path: str, *rows: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(STATEMENT.replace("TABLE", "TABLE IF NOT EXISTS"))
        connection.execute("CREATE TABLE IF NOT EXISTS machines (id TEXT PRIMARY KEY, value TEXT)")
        connection.executemany("INSERT INTO answers VALUES (NULL, ?)", [(row,) for row in rows])
        connection.execute("INSERT OR IGNORE INTO machines VALUES ('a', 'machine')")


def test_a_journal_goes_to_workers_and_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "BLOCK", 2)
    here, there = Journal(str(tmp_path / "here")), Journal(str(tmp_path / "there"))
    assert list(here.added()) == []
    (tmp_path / "here").mkdir()
    write(here.path, "one", "two", "three")
    pieces = list(here.added())
    assert len(pieces) == 3
    there.add(pieces)
    there.skip()
    assert texts(Path(there.path)) == ["one", "two", "three"]
    assert (list(here.added()), list(there.added())) == ([], [])
    write(there.path, "four")
    write(here.path, "five")
    news = list(there.added())
    assert added(news) == ["four"]
    here.add(news)
    assert texts(Path(here.path)) == ["one", "two", "three", "five", "four"]
    with closing(sqlite3.connect(here.path)) as connection:
        assert connection.execute("SELECT * FROM machines").fetchall() == [("a", "machine")]


def test_a_journal_that_another_run_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "LOCK_SECONDS", 0.05)
    write(str(tmp_path / "journal.sqlite"), "one")
    with closing(sqlite3.connect(tmp_path / "journal.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(WorkspaceError, match="database is locked"):
            Journal(str(tmp_path)).add([(STATEMENT, [(1, 1, "two")])])
