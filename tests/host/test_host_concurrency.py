"""Several rows at the same time: results in order, routers one at a time, one failure, and what is recorded."""

from __future__ import annotations

import importlib.util
import json
import os
import time
from typing import Any

import pytest

from core.runner.local import AHEAD, RowFailed, Threads, in_order
from tests.host.host_job import Job, answers

MEETING = """
import os, threading
from sedna.common.class_factory import ClassFactory, ClassType

@ClassFactory.register(ClassType.GENERAL, alias="EdgeModel")
class EdgeModel:
    '''Answers when as many rows as ``size`` are being asked for at once, the last one first.'''
    def __init__(self, size=4):
        self.size, self.waiting, self.turn = size, 0, threading.Condition()
        self.answered = 0
    def predict(self, data):
        number = int(data.split()[1])
        with self.turn:
            self.waiting += 1
            self.turn.notify_all()
            group = number // self.size
            self.turn.wait_for(lambda: self.waiting >= self.size * (group + 1), 20)
            last = self.size * group + self.size - 1 - number % self.size
            self.turn.wait_for(lambda: self.answered >= last, 20)
            self.answered += 1
            self.turn.notify_all()
        told = os.environ["IANVS_CONCURRENCY"]
        return {"completion": data, "prediction": data[-1], "order": self.answered, "told": told}
"""


def test_rows_are_answered_at_once_and_written_in_order(job: Job) -> None:
    job.plugin("algo/edge_model.py", MEETING)
    job.rows([{"question": f"question {i} {'AB'[i % 2]}", "answer": "A"} for i in range(12)])
    job.job["concurrency"] = 4
    assert job.run() == 0
    rows = answers(job)
    assert [row["index"] for row in rows] == list(range(12))
    assert [row["result"]["completion"].split()[1] for row in rows] == [str(i) for i in range(12)]
    assert [row["result"]["order"] for row in rows[:4]] == [4, 3, 2, 1], "the rows did not meet"
    assert {row["result"]["told"] for row in rows} == {"4"}
    assert "IANVS_CONCURRENCY" not in os.environ
    assert job.leaderboard()[0]["Accuracy"] == "50.0"
    run = json.loads((job.case_folder() / "environment.json").read_text())["run"]
    assert (run["runner"], run["concurrency"]) == ("local", 4)


ROUTERS = """
import threading, time
from sedna.common.class_factory import ClassFactory, ClassType

class Counting:
    inside = most = 0
    lock = threading.Lock()
    def __call__(self, data=None):
        with self.lock:
            Counting.inside += 1
            Counting.most = max(Counting.most, Counting.inside)
        self.linger()
        with self.lock:
            Counting.inside -= 1
        return False
    def cleanup(self):
        print("most at once:", Counting.most)

@ClassFactory.register(ClassType.HEM, alias="Careful")
class Careful(Counting):
    def linger(self):
        time.sleep(0.01)

@ClassFactory.register(ClassType.HEM, alias="Concurrent")
class Concurrent(Counting):
    concurrent = True
    barrier = threading.Barrier(2)
    def linger(self):
        self.barrier.wait(20)
"""


@pytest.mark.parametrize(("name", "most"), [("Careful", 1), ("Concurrent", 2)])
def test_a_router_is_asked_by_one_thread_at_a_time(
    job: Job, capfd: pytest.CaptureFixture[str], name: str, most: int
) -> None:
    job.plugin("algo/counting.py", ROUTERS)
    job.modules[2].update(name=name, url="algo/counting.py")
    job.job["concurrency"] = 2
    assert job.run() == 0
    assert f"most at once: {most}" in capfd.readouterr().out


FAILING = """
import threading
import time
from sedna.common.class_factory import ClassFactory, ClassType

@ClassFactory.register(ClassType.GENERAL, alias="EdgeModel")
class EdgeModel:
    begun, failed = 0, threading.Event()
    barrier = threading.Barrier(4)
    def predict(self, data):
        number = int(data.split()[1])
        if number < 4:
            self.barrier.wait(20)
        if number == 2:
            self.failed.set()
            raise RuntimeError("no answer")
        self.failed.wait(20)
        if number >= 4:
            time.sleep(0.02)
        with open("journal.txt", "a") as file:
            file.write(f"{number}\\n")
        return {"prediction": "A"}
"""


def test_after_a_failure_no_row_begins(job: Job, capfd: pytest.CaptureFixture[str]) -> None:
    job.plugin("algo/edge_model.py", FAILING)
    job.job["concurrency"] = 4
    job.rows([{"question": f"question {i} A", "answer": "A"} for i in range(400)])
    assert job.run() == 1
    error = capfd.readouterr().err
    assert "failed: row 3 of 400: RuntimeError: no answer (" in error
    assert "2 of 400 answers are kept in" in error
    (partial,) = (job.folder / "workspace").rglob("*.partial.jsonl")
    assert [json.loads(line)["index"] for line in partial.read_text().splitlines()] == [0, 1]
    written = sorted(map(int, (job.folder / "journal.txt").read_text().split()))
    assert set(written) >= {0, 1, 3}
    # A thread may begin a few more rows before the failure is heard of.
    assert len(written) < 200


def test_what_still_comes_after_a_failure_counts() -> None:
    stopped: list[None] = []
    items = [(3, None, "third"), (0, "result 0", None), (2, None, "second"), (1, "result 1", None), (4, "late", None)]
    given = []
    with pytest.raises(RowFailed) as failure:
        given.extend(in_order(items, lambda _: None, lambda: stopped.append(None)))
    assert (failure.value.index, failure.value.error) == (2, "second")
    assert stopped


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"concurrency": 0}, "concurrency must be from 1 to 1024, not 0"),
        ({"runner": "rai"}, "runner must be one of local, ray, got the string 'rai'. Did you mean 'ray'?"),
        ({"runner": {"workers": 2}}, "the key 'name' is missing in runner"),
        ({"runner": {"name": "local", "workers": 2}}, "workers is an option of runner ray, not of local"),
        ({"runner": {"name": "ray", "shards": 2}}, "unknown key 'shards' in runner. Did you mean 'shard'?"),
        ({"runner": {"name": "ray", "resources": {"npu": -1}}}, "resources must map the names of resources to numbers"),
        ({"runner": {"name": "ray", "address": "ray://head:1"}}, "address must be HOST:PORT of a Ray cluster, or auto"),
    ],
)
def test_keys_of_the_run_are_checked(
    job: Job, capfd: pytest.CaptureFixture[str], keys: dict[str, Any], message: str
) -> None:
    job.job.update(keys)
    assert job.run() == 2
    error = capfd.readouterr().err
    assert message in error
    assert error.startswith("ianvs: job.yaml:")


def test_without_ray_the_runner_says_how_to_get_it(
    job: Job, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    job.job["runner"] = "ray"
    assert job.run() == 2
    line = job.line_of("job.yaml", "runner")
    message = "runner ray needs the package ray, which is not installed: pip install 'ray>=2.60,<3'"
    assert f"ianvs: job.yaml:{line}: {message}\n" == capfd.readouterr().err


def test_rows_are_not_begun_without_end_ahead_of_one_that_takes_long() -> None:
    begun: list[int] = []
    ahead: list[int] = []

    def answer(row: int) -> int:
        begun.append(row)
        if row == 0:
            while len(begun) < 2 * AHEAD:
                time.sleep(0.01)
            time.sleep(0.1)
            ahead.append(len(begun))
        return row

    done: list[int] = []
    results = Threads(answer, range(1000), 2).results(done.append)
    assert next(results) == 0
    assert ahead == [2 * AHEAD]
    assert len(done) >= 2 * AHEAD - 1, "completions must be told before the first row is there"
    assert list(results) == list(range(1, 1000))
