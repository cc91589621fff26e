"""Runs that succeed: the grid, what plugins see, and what is left in the workspace."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml

from core.cmd.benchmarking import main
from tests.host.host_job import Job, answers

COLUMNS = ["rank", "algorithm", "Accuracy", "Edge Ratio", "paradigm", "edgemodel", "cloudmodel", "hard_example_mining"]


def test_leaderboards_have_the_layout_of_ianvs(job: Job) -> None:
    job.hyperparameters(0, tag=["edge"])
    job.job["rank"]["selected_dataitem"] = {
        "paradigms": ["all"], "modules": ["hard_example_mining"], "hyperparameters": ["edgemodel-tag"],
        "metrics": ["Accuracy"],
    }  # fmt: skip
    assert job.run() == 0
    (row,) = job.leaderboard()
    assert list(row) == [*COLUMNS, "edgemodel-tag", "time", "url"]
    assert (row["rank"], row["Accuracy"], row["Edge Ratio"]) == ("1", "50.0", "1.0")
    assert (row["algorithm"], row["paradigm"], row["edgemodel-tag"]) == ("routing", "jointinference", "edge")
    (selected,) = job.leaderboard("selected")
    names = ["rank", "algorithm", "Accuracy", "paradigm", "hard_example_mining", "edgemodel-tag", "time", "url"]
    assert list(selected) == names


def test_the_folder_of_a_test_case(job: Job) -> None:
    job.hyperparameters(0, seed=[7])
    assert job.run() == 0
    folder = job.case_folder()
    assert folder.parent == job.folder / "workspace" / "job" / "routing"
    assert sorted(p.name for p in folder.iterdir()) == ["answers.jsonl", "config.yaml", "environment.json"]
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert config["modules"][0]["hyperparameters"] == {"seed": 7}
    assert config["hard_example_mining_mode"] == "mining-then-inference"
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["seeds"] == {"edgemodel-seed": 7}
    assert environment["versions"].keys() >= {"python", "numpy"}
    assert environment["run"]["queries"] == environment["run"]["edge"] == 10
    rows = answers(job)
    assert [row["index"] for row in rows] == list(range(10))
    assert rows[0]["result"] == rows[0]["edge"] == {**rows[0]["edge"], "completion": "edge:question 0 A"}
    assert rows[0]["cloud"] is None
    assert rows[0]["is_hard"] is False


def test_the_grid_is_a_product_within_and_across_modules(job: Job, capfd: pytest.CaptureFixture[str]) -> None:
    job.hyperparameters(0, tag=["a", "b"], seed=[1, 2])
    job.hyperparameters(1, size=[10, 20])
    assert job.run() == 0
    points = [(row["edgemodel-tag"], row["edgemodel-seed"], row["cloudmodel-size"]) for row in job.leaderboard()]
    assert sorted(points) == sorted((a, b, c) for a in "ab" for b in "12" for c in ("10", "20"))
    assert "[8/8] routing edgemodel-tag=b edgemodel-seed=2 cloudmodel-size=20: 10 queries" in capfd.readouterr().err


def test_other_hyperparameters_lie_underneath(job: Job) -> None:
    job.write("base.yaml", {"tag": "base", "seed": 5})
    job.modules[0]["hyperparameters"] = [
        {"other_hyperparameters": {"values": ["base.yaml"]}},
        {"tag": {"values": ["own"]}},
    ]
    assert job.run() == 0
    (row,) = job.leaderboard()
    assert (row["edgemodel-tag"], row["edgemodel-seed"]) == ("own", "5")


def with_processor(job: Job, makes: str) -> Job:
    """``makes``: the inputs and labels that a dataset processor makes of ``x`` and ``y``."""
    body = f"""
    def __call__(self, dataset):
        x, y = dataset.x, dataset.y
        dataset.x, dataset.y = {makes}
        return dataset
    """
    job.define("algo/processor.py", "Processor", body)
    job.modules.insert(0, {"type": "dataset_processor", "name": "Processor", "url": "algo/processor.py"})
    job.rows([{"question": f"question {i} {c}", "answer": c} for i, c in enumerate("ABCABDAAB")])
    return job


@pytest.mark.parametrize(
    ("makes", "rows"),
    [
        ("[{'query': q} for q in x], [label.lower() for label in y]", 9),
        ("x[::-1], y[::-1]", 9),
        ("[q for q in x if q.endswith('A')], [label for label in y if label == 'A']", 4),
    ],
)
def test_labels_stay_with_their_rows(job: Job, makes: str, rows: int) -> None:
    assert with_processor(job, makes).run() == 0
    assert job.leaderboard()[0]["Accuracy"] == "100.0"
    assert len(answers(job)) == rows


@pytest.mark.parametrize(("makes", "message"), [("x[:3], y", "do not match"), ("[], []", "left no rows")])
def test_a_processor_that_loses_labels_or_rows(
    job: Job, makes: str, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert with_processor(job, makes).run() == 1
    assert message in capfd.readouterr().err


def test_plugins_find_their_environment(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("IANVS_FRESH", "model_path"):
        monkeypatch.delenv(name, raising=False)
    for name in ("IANVS_RUN_ID", "IANVS_REPEAT", "RESULT_SAVED_URL"):
        monkeypatch.setenv(name, "7")
    body = """
    from os import environ
    def __init__(self):
        self.environ["model_path"] = "of this test case only"
        self.at_start = self.environ["RESULT_SAVED_URL"]
    def predict(self, data):
        names = ("RESULT_SAVED_URL", "IANVS_RUN_ID", "IANVS_FRESH", "IANVS_REPEAT")
        return {"prediction": "A", "start": self.at_start, "env": {n: self.environ.get(n) for n in names}}
    """
    job.define("algo/edge_model.py", "EdgeModel", body)
    assert job.run() == 0
    result = answers(job)[0]["result"]
    assert result["start"] == result["env"]["RESULT_SAVED_URL"] == os.path.join("workspace", "job", "routing")
    assert os.path.isdir(result["start"])
    first = result["env"]["IANVS_RUN_ID"]
    assert first != "7"
    assert (result["env"]["IANVS_FRESH"], result["env"]["IANVS_REPEAT"]) == (None, "0")
    assert "model_path" not in os.environ
    before = dict(os.environ)
    assert job.run("--fresh") == 0
    assert dict(os.environ) == before, "the next run in this process would be a fresh one too"
    again = answers(job)[0]["result"]["env"]
    assert again["IANVS_FRESH"] == "1"
    assert again["IANVS_RUN_ID"] != first


def test_urls_may_be_relative_to_the_yaml_file(job: Job, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    job.save()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert main(["-f", "../job.yaml"]) == 0
    assert (elsewhere / "workspace" / "job" / "rank").exists(), "the workspace belongs to the current directory"


def test_check_validates_and_writes_nothing(job: Job, capfd: pytest.CaptureFixture[str]) -> None:
    job.hyperparameters(0, tag=["a", "b"])
    job.hyperparameters(1, fail=["load"])
    assert main(["check", "-f", job.save()]) == 0
    assert "2 test cases, 10 rows, 2 metrics" in capfd.readouterr().out
    assert not (job.folder / "workspace").exists()


def test_replayed_answers_are_counted_and_kept_out_of_the_speed(job: Job, capfd: pytest.CaptureFixture[str]) -> None:
    job.plugin(
        "algo/answers.py",
        """
        def answer(who, data):
            replayed = data.endswith("B")
            return {"prediction": "A", "replayed": replayed, "usage": {"completion_tokens": 1000 if replayed else 2},
                    "perf": {"latency": 0.5}}
        """,
    )
    assert job.run() == 0
    assert "10 queries, edge 10, cloud 0, replayed 5, 4 token/s" in capfd.readouterr().err


def test_answers_that_json_cannot_hold_as_they_are(job: Job) -> None:
    job.plugin(
        "algo/answers.py",
        """
        import math
        from pathlib import Path
        import numpy as np
        def answer(who, data):
            numbers = {"nan": math.nan, "number": np.float32(0.5), "array": np.arange(2)}
            others = {"set": {1}, "bytes": b"ab", "path": Path("a"), "keys": {None: 1, True: 2}}
            return {"prediction": data[-1], "odd": "\\ud800", **numbers, **others}
        """,
    )
    assert job.run() == 0
    row = answers(job)[0]["result"]
    assert (row["nan"], row["number"], row["array"], row["odd"]) == (None, 0.5, [0, 1], "\ud800")
    assert (row["set"], row["bytes"], row["path"], row["keys"]) == ([1], "YWI=", "a", {"None": 1, "True": 2})
