"""Repeats of test cases."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import pytest

from core.storymanager.repeats import combined
from tests.host.host_job import Job

METRICS = """
import os
from sedna.common.class_factory import ClassFactory

VALUES = {"Speed": [10.0, 12.0, 14.5], "Speed CI95": [0.5, 0.5, 0.5], "Queries": [10, 10, 10],
          "Gaps": [1.0, None, 2.0], "Gaps CI95": [0.1, 0.1, 0.1], "Word": ["fast", "fast", "fast"]}
for name, values in VALUES.items():
    metric = lambda y_true, y_pred, values=values: values[int(os.environ["IANVS_REPEAT"])]
    ClassFactory.register(alias=name)(metric)
ClassFactory.register(alias="Answered")(lambda y_true, y_pred: y_pred[0][1]["repeat"])
"""

EDGE = """
import os
def __init__(self, fail=-1):
    self.fail = fail
def predict(self, data):
    repeat = int(self.os.environ["IANVS_REPEAT"])
    if repeat == self.fail:
        raise RuntimeError("lost")
    return {"repeat": repeat}
"""


@pytest.fixture
def repeated(job: Job) -> Job:
    """A job that runs each test case three times, and whose values depend on the repeat."""
    job.define("algo/edge_model.py", "EdgeModel", EDGE)
    job.plugin("env/values.py", METRICS)
    names = ("Speed", "Speed CI95", "Queries", "Gaps", "Gaps CI95", "Word", "Answered")
    job.env["metrics"] = [{"name": name, "url": "env/values.py"} for name in names]
    job.job["rank"]["sort_by"] = [{"Speed": "descend"}]
    job.job["repeats"] = 3
    return job


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_one_row_of_means_and_students_intervals(repeated: Job, capfd: pytest.CaptureFixture[str]) -> None:
    assert repeated.run() == 0
    (row,) = repeated.leaderboard()
    assert float(row["Speed"]) == pytest.approx(36.5 / 3, rel=1e-5)
    deviation = math.sqrt(sum((x - 36.5 / 3) ** 2 for x in (10.0, 12.0, 14.5)) / 2)
    assert float(row["Speed CI95"]) == pytest.approx(4.3027 * deviation / math.sqrt(3), rel=1e-4)
    assert (row["Queries"], row["Word"], row["Answered"]) == ("10", "fast", "1.0")
    assert (row["Gaps"], row["Gaps CI95"]) == ("", ""), "undefined in one repeat is undefined"
    folder = repeated.case_folder()
    with (folder / "repeats.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["repeat"] for row in rows] == ["1", "2", "3"]
    assert [row["Speed"] for row in rows] == ["10.0", "12.0", "14.5"]
    assert [row["Gaps"] for row in rows] == ["1.0", "", "2.0"]
    for number, name in enumerate(("answers.jsonl", "answers.repeat-2.jsonl", "answers.repeat-3.jsonl")):
        answers = [json.loads(line) for line in (folder / name).read_text().splitlines()]
        assert {answer["result"]["repeat"] for answer in answers} == {number}
    assert json.loads((folder / "environment.repeat-3.json").read_text())["run"]["repeat"] == 3
    error = capfd.readouterr().err
    assert "1 test case, 3 repeats, 10 rows" in error
    assert "[1/1] routing (repeat 2 of 3): 10 queries" in error


def test_fewer_repeats_remove_files_of_more(repeated: Job) -> None:
    assert repeated.run() == 0
    folder = repeated.case_folder()
    repeated.job["repeats"] = 2
    assert repeated.run() == 0
    assert repeated.case_folder() == folder, "repeats are no part of what is tested"
    assert names_in(folder) == [
        "answers.jsonl", "answers.repeat-2.jsonl", "config.yaml", "environment.json", "environment.repeat-2.json",
        "repeats.csv",
    ]  # fmt: skip
    del repeated.job["repeats"]
    assert repeated.run() == 0
    assert names_in(folder) == ["answers.jsonl", "config.yaml", "environment.json"]
    assert repeated.leaderboard()[0]["Speed CI95"] == "0.5", "a single run has its own interval"


def test_a_repeat_that_fails_fails_the_test_case(repeated: Job, capfd: pytest.CaptureFixture[str]) -> None:
    repeated.hyperparameters(0, fail=[1])
    assert repeated.run() == 1
    assert not repeated.leaderboard()
    assert "failed: row 1 of 10: RuntimeError: lost" in capfd.readouterr().err


def test_an_interval_without_its_metric_is_an_error(repeated: Job, capfd: pytest.CaptureFixture[str]) -> None:
    repeated.env["metrics"] = [{"name": name, "url": "env/values.py"} for name in ("Queries", "Speed CI95")]
    repeated.job["rank"]["sort_by"] = [{"Queries": "descend"}]
    assert repeated.run() == 2
    assert "'Speed CI95' is the interval of 'Speed' over them: add the metric 'Speed'" in capfd.readouterr().err


def test_equal_values_have_no_width_and_different_texts_no_mean() -> None:
    repeats = [{"X": 5, "X CI95": 1.0, "Word": "a"}, {"X": 5, "X CI95": 2.0, "Word": "b"}]
    assert combined(repeats) == {"X": 5, "X CI95": 0.0, "Word": None}
