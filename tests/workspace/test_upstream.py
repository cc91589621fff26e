"""A workspace as upstream Ianvs leaves it: rows on a leaderboard, numbered by time, and no folders of test cases."""

from __future__ import annotations

import csv
import json
import os
import time
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ianvs_specdec.commands.cli import main
from ianvs_specdec.report.collect import collect
from ianvs_specdec.report.metrics import METRICS
from ianvs_specdec.workspace.cases import read_workspace
from tests.support.workspace import Side, choice, completion

COLUMNS = ("Accuracy", "Edge Ratio", "Queries")
RIGHT, WRONG = "The answer is B.", "The answer is C."


class Upstream:
    """What upstream Ianvs does in a job of one algorithm per router: it numbers all test cases, runs one after the
    other, and writes its leaderboard when all have ended, sorted by the first metric.
    """

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, queries: int = 4) -> None:
        self.root, self.job = root, root / "workspace" / "job"
        self.rows = [choice(number) for number in range(queries)]
        self.monkeypatch = monkeypatch
        self.done: list[dict[str, str]] = []
        for name in ("IANVS_RUN_ID", "RESULT_SAVED_URL"):
            monkeypatch.delenv(name, raising=False)

    def case(self, router: str, right: int, number: uuid.UUID, **columns: str) -> None:
        """``right``: how many of the queries the edge answers right."""
        algorithm = router.lower()
        self.monkeypatch.setenv("RESULT_SAVED_URL", str(self.job / algorithm))
        self.job.joinpath(algorithm).mkdir(parents=True, exist_ok=True)
        y_pred = [self._row(index, RIGHT if index < right else WRONG, router) for index in range(len(self.rows))]
        y_true = np.array([row["answer"] for row in self.rows])
        values = {name: str(METRICS[name](y_true, y_pred)) for name in COLUMNS}  # type: ignore[arg-type]
        self.done.append({
            "algorithm": algorithm, **values, "paradigm": "jointinference", "edgemodel": "EdgeModel",
            "hard_example_mining": router, "edgemodel-model": "edge", "edgemodel-backend": "autoregressive",
            "edgemodel-threads": "1", "hard_example_mining-edgemodel": "<EdgeModel object at 0x7f00>", **columns,
            "time": now(), "url": f"./workspace/job/{algorithm}/{number}",
        })  # fmt: skip

    def _row(self, index: int, text: str, router: str) -> list[Any]:
        response = Side("edge", "autoregressive", [completion(text)]).response(
            self.rows[index], index, {"router": router, "score": 0.0, "hard": False, "seconds": 1e-5}
        )
        response.row = {"query": self.rows[index]["question"], "gold": "B", "index": index}
        return [False, response, response, None]

    def leaderboard(self) -> None:
        self.done.sort(key=lambda row: -float(row["Accuracy"]))
        names = list(dict.fromkeys(name for row in self.done for name in row))
        path = self.job / "rank" / "all_rank.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["rank", *names])
            writer.writerows([i, *(row.get(name, "") for name in names)] for i, row in enumerate(self.done, 1))


def now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")


@pytest.fixture
def upstream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Upstream:
    return Upstream(tmp_path, monkeypatch)


def test_the_report_shows_every_query_of_every_test_case(upstream: Upstream) -> None:
    numbers = [uuid.uuid1() for _ in range(4)]
    for number, right in zip(numbers, (1, 3, 2, 4), strict=True):  # replayed: all in the same second
        upstream.case("EdgeOnly", right, number, **{"edgemodel-seed": str(right)})
    upstream.leaderboard()
    document = collect(upstream.root / "workspace")
    assert [case["figures"]["Accuracy"] for case in document["cases"]] == [100.0, 75.0, 50.0, 25.0]
    for case, right in zip(document["cases"], (4, 3, 2, 1), strict=True):
        texts = [document["answers"][entry["turns"][0]["answer"]]["text"] for entry in case["entries"]]
        assert texts == [RIGHT] * right + [WRONG] * (4 - right), "the answers of another test case"
        assert case["configuration"]["edgemodel.seed"] == str(right)
        assert case["notes"] == []
    assert document["queries"][0]["turns"] == [upstream.rows[0]["question"]["turns"][0]]
    assert document["queries"][0]["references"] == ["B"]
    assert any("run under upstream Ianvs" in note for note in document["notes"])
    assert len(list(upstream.job.glob("asked-*.jsonl"))) == 1


def test_hyperparameters_are_restored_without_addresses(upstream: Upstream) -> None:
    upstream.case("OracleRouter", 4, uuid.uuid1())
    upstream.leaderboard()
    (case,) = read_workspace(upstream.root / "workspace").cases
    assert case.hyperparameters("edge") == {"model": "edge", "backend": "autoregressive", "threads": 1}
    assert case.module("hard_example_mining")["hyperparameters"] == {}


def test_an_aborted_run_and_a_row_without_folder_stay_apart(upstream: Upstream) -> None:
    upstream.case("EdgeOnly", 1, uuid.uuid1())
    upstream.done.clear()  # the run was killed before its leaderboard was written
    upstream.case("EdgeOnly", 4, uuid.uuid1())
    upstream.leaderboard()
    first, broken = collect(upstream.job)["cases"]
    assert (first["figures"]["Accuracy"], broken["figures"]["Accuracy"]) == (100.0, 25.0)
    assert broken["notes"] == ["not on the leaderboard"]
    upstream.done[0] |= {"edgemodel-model": "another", "time": "2020-01-01 00:00:00"}
    upstream.leaderboard()
    assert collect(upstream.job)["cases"][0]["answered"] == 0


def test_opencompass_exports_the_answers(upstream: Upstream, capsys: pytest.CaptureFixture[str]) -> None:
    number = uuid.uuid1()
    upstream.case("EdgeOnly", 4, number)
    upstream.leaderboard()
    out = upstream.root / "out"
    assert main(["data", "opencompass", "--workspace", str(upstream.job), "--out", str(out)]) == 0
    (file, _) = sorted((out / "predictions" / f"edgeonly-{number}").iterdir())
    assert json.loads(file.read_text())["0"]["prediction"] == RIGHT


def test_folders_are_written_once_and_only_under_upstream(upstream: Upstream) -> None:
    upstream.case("EdgeOnly", 4, uuid.uuid1())  # three metrics
    assert len(list(upstream.job.glob("edgeonly/*"))) == 1
    upstream.monkeypatch.setenv("IANVS_RUN_ID", "run")
    upstream.case("EdgeOnly", 4, uuid.uuid1())
    assert len(list(upstream.job.glob("edgeonly/*"))) == 1


def test_a_full_disk_fails_no_test_case(
    upstream: Upstream, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object, **more: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ianvs_specdec.workspace.upstream.yaml.safe_dump", full)
    upstream.case("EdgeOnly", 4, uuid.uuid1())
    assert "No space left on device" in caplog.text
    assert os.listdir(upstream.job / "edgeonly") == []
    assert upstream.done[0]["Accuracy"] == "100.0"


def test_a_selected_leaderboard_may_have_any_columns(upstream: Upstream) -> None:
    upstream.case("EdgeOnly", 4, uuid.uuid1())
    upstream.leaderboard()
    (upstream.job / "rank" / "selected_rank.csv").write_text("rank,Accuracy\n1,100.0\n")
    document = collect(upstream.job)
    assert document["shown"] == ["Accuracy"]
    assert not any("is not a leaderboard" in note for note in document["notes"])
