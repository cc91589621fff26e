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
        "paradigms": ["all"],
        "modules": ["hard_example_mining"],
        "hyperparameters": ["edgemodel-tag"],
        "metrics": ["Accuracy"],
    }
    assert job.run() == 0
    (row,) = job.leaderboard()
    assert list(row) == [*COLUMNS, "edgemodel-tag", "time", "url"]
    assert (row["rank"], row["Accuracy"], row["Edge Ratio"]) == ("1", "50.0", "1.0")
    assert (row["algorithm"], row["paradigm"], row["edgemodel-tag"]) == ("routing", "jointinference", "edge")
    (selected,) = job.leaderboard("selected")
    assert list(selected) == [
        "rank",
        "algorithm",
        "Accuracy",
        "paradigm",
        "hard_example_mining",
        "edgemodel-tag",
        "time",
        "url",
    ]


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


PROCESSORS = """
from sedna.common.class_factory import ClassFactory, ClassType

@ClassFactory.register(ClassType.GENERAL, alias="Pairs")
class Pairs:
    def __call__(self, dataset):
        dataset.x = [{"query": x, "gold": y} for x, y in zip(dataset.x, dataset.y)]
        return dataset

@ClassFactory.register(ClassType.GENERAL, alias="Reversed")
class Reversed:
    def __call__(self, dataset):
        dataset.x, dataset.y = dataset.x[::-1], dataset.y[::-1]
        return dataset

@ClassFactory.register(ClassType.GENERAL, alias="OnlyA")
class OnlyA:
    def __call__(self, dataset):
        keep = [i for i, x in enumerate(dataset.x) if x.endswith("A")]
        dataset.x, dataset.y = [dataset.x[i] for i in keep], [dataset.y[i] for i in keep]
        return dataset

@ClassFactory.register(ClassType.GENERAL, alias="Careless")
class Careless:
    def __call__(self, dataset):
        dataset.x = dataset.x[:3]
        return dataset

@ClassFactory.register(ClassType.GENERAL, alias="Nothing")
class Nothing:
    def __call__(self, dataset):
        dataset.x, dataset.y = [], []
        return dataset
"""


def with_processor(job: Job, name: str) -> Job:
    job.plugin("algo/processors.py", PROCESSORS)
    job.modules.insert(0, {"type": "dataset_processor", "name": name, "url": "algo/processors.py"})
    job.rows([{"question": f"question {i} {c}", "answer": c} for i, c in enumerate("ABCABDAAB")])
    return job


@pytest.mark.parametrize(("name", "rows"), [("Pairs", 9), ("Reversed", 9), ("OnlyA", 4)])
def test_labels_stay_with_their_rows(job: Job, name: str, rows: int) -> None:
    assert with_processor(job, name).run() == 0
    assert job.leaderboard()[0]["Accuracy"] == "100.0"
    assert len(answers(job)) == rows


@pytest.mark.parametrize(("name", "message"), [("Careless", "cannot be matched"), ("Nothing", "left no rows")])
def test_a_processor_that_loses_labels_or_rows(
    job: Job, name: str, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert with_processor(job, name).run() == 1
    assert message in capfd.readouterr().err


def test_plugins_find_their_environment(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("IANVS_FRESH", "model_path"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("IANVS_RUN_ID", "stale")
    monkeypatch.setenv("RESULT_SAVED_URL", "stale")
    job.plugin(
        "algo/edge_model.py",
        """
        import os
        from sedna.common.class_factory import ClassFactory, ClassType
        @ClassFactory.register(ClassType.GENERAL, alias="EdgeModel")
        class EdgeModel:
            def __init__(self):
                os.environ["model_path"] = "of this test case only"
                self.at_start = os.environ["RESULT_SAVED_URL"]
            def predict(self, data):
                names = ("RESULT_SAVED_URL", "IANVS_RUN_ID", "IANVS_FRESH")
                return {"prediction": "A", "start": self.at_start, "env": {n: os.environ.get(n) for n in names}}
        """,
    )
    assert job.run() == 0
    result = answers(job)[0]["result"]
    assert result["start"] == result["env"]["RESULT_SAVED_URL"] == os.path.join("workspace", "job", "routing")
    assert os.path.isdir(result["start"])
    first = result["env"]["IANVS_RUN_ID"]
    assert first != "stale"
    assert result["env"]["IANVS_FRESH"] is None
    assert "model_path" not in os.environ
    before = dict(os.environ)
    assert job.run("--fresh") == 0
    assert dict(os.environ) == before, "the next run in this process would be a fresh one too"
    again = answers(job)[0]["result"]["env"]
    assert again["IANVS_FRESH"] == "1"
    assert again["IANVS_RUN_ID"] != first


def test_metadata_format(job: Job) -> None:
    folder = job.folder / "set"
    folder.mkdir()
    described = {"dataset": "d", "description": "", "level_1_dim": "1", "level_2_dim": "2"}
    (folder / "metadata.json").write_text(json.dumps(described))
    row = {
        "prompt": "Answer with a letter. ",
        "query": "really A",
        "response": "A",
        "level_3_dim": "3",
        "level_4_dim": "4",
    }
    (folder / "data.jsonl").write_text(json.dumps(row) + "\n")
    job.env["dataset"] = {"test_data_info": "set/metadata.json"}
    assert job.run() == 0
    assert answers(job)[0]["result"]["completion"] == "edge:Answer with a letter. really A"


def test_urls_may_be_relative_to_the_yaml_file(job: Job, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    job.save()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert main(["-f", "../job.yaml"]) == 0
    assert (elsewhere / "workspace" / "job" / "rank" / "all_rank.csv").exists(), (
        "the workspace belongs to the current directory"
    )


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
