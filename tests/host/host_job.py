"""A small joint-inference plugin, written into a folder, and a job on it that tests change and run."""

from __future__ import annotations

import csv
import json
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml

from core.cmd.benchmarking import main

DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # a dozen times faster than the one of Python alone

EDGE = """
import os
from sedna.common.class_factory import ClassFactory, ClassType
from answers import answer

os.environ["BACKEND_TYPE"] = "TORCH"

@ClassFactory.register(ClassType.GENERAL, alias="EdgeModel")
class EdgeModel:
    def __init__(self, fail="", at=0, **kwargs):
        self.fail, self.at, self.seen, self.tag = fail, at, 0, kwargs.get("tag", "edge")

    def load(self, **kwargs):
        if self.fail == "load":
            raise OSError("no such model")

    def predict(self, data, **kwargs):
        self.seen += 1
        if self.fail == "predict" and self.seen > self.at:
            raise RuntimeError("out of memory")
        return answer(self.tag, data)

    def cleanup(self):
        if self.fail == "cleanup":
            raise ValueError("already closed")
"""

CLOUD = """
from sedna.common.class_factory import ClassFactory, ClassType
from answers import answer

@ClassFactory.register(ClassType.GENERAL, alias="CloudModel")
class CloudModel:
    def __init__(self, **kwargs):
        pass

    def inference(self, data, post_process=None, mining_mode=None, **kwargs):
        return answer("cloud", data)
"""

ANSWERS = """
def answer(who, data):
    data = data["query"] if isinstance(data, dict) else data
    return {"completion": f"{who}:{data}", "prediction": data[-1],
            "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
            "perf": {"time_to_first_token": 0.1, "latency": 0.2}}
"""

ROUTERS = """
from sedna.common.class_factory import ClassFactory, ClassType

@ClassFactory.register(ClassType.HEM, alias="EdgeOnly")
class EdgeOnly:
    def __call__(self, data=None):
        return False

@ClassFactory.register(ClassType.HEM, alias="CloudOnly")
class CloudOnly:
    def __call__(self, data=None):
        return True

@ClassFactory.register(ClassType.HEM, alias="OracleRouter")
class OracleRouter:
    def __init__(self, **kwargs):
        self.edge, self.cloud = kwargs["edgemodel"], kwargs["cloudmodel"]

    def __call__(self, data=None):
        return self.edge.predict(data)["prediction"] != self.cloud.inference(data)["prediction"]

@ClassFactory.register(ClassType.HEM, alias="Longer")
class Longer:
    def __init__(self, than=20):
        self.than = than

    def __call__(self, result=None):
        return len(str(result)) > self.than

    def cleanup(self):
        print("router cleaned up")
"""

METRICS = """
import math
from sedna.common.class_factory import ClassFactory, ClassType

@ClassFactory.register(ClassType.GENERAL, alias="Accuracy")
def accuracy(y_true, y_pred):
    assert y_true.dtype == object
    return 100 * sum(row[1]["prediction"] == label for row, label in zip(y_pred, y_true, strict=True)) / len(y_pred)

@ClassFactory.register(ClassType.GENERAL, alias="Edge Ratio")
def edge_ratio(y_true, y_pred):
    return sum(row[2] is not None for row in y_pred) / len(y_pred)

@ClassFactory.register(ClassType.GENERAL, alias="Undefined")
def undefined(y_true, y_pred):
    return math.nan

@ClassFactory.register(ClassType.GENERAL, alias="Broken")
def broken(y_true, y_pred):
    return 1 / 0

@ClassFactory.register(ClassType.GENERAL, alias="Several")
def several(y_true, y_pred):
    return [1, 2]
"""


class Job:
    """A job in a folder: its three YAML files as plain data, to be changed by a test before ``run()``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.plugin("algo/edge_model.py", EDGE)
        self.plugin("algo/cloud_model.py", CLOUD)
        self.plugin("algo/answers.py", ANSWERS)
        self.plugin("algo/routers.py", ROUTERS)
        self.plugin("env/metrics.py", METRICS)
        self.rows([{"question": f"question {i} {'AB'[i % 2]}", "answer": "A"} for i in range(10)])
        self.env: dict[str, Any] = {
            "dataset": {"test_data": "data.jsonl"},
            "metrics": [{"name": name, "url": "env/metrics.py"} for name in ("Accuracy", "Edge Ratio")],
        }
        self.modules: list[dict[str, Any]] = [
            {"type": "edgemodel", "name": "EdgeModel", "url": "algo/edge_model.py"},
            {"type": "cloudmodel", "name": "CloudModel", "url": "algo/cloud_model.py"},
            {"type": "hard_example_mining", "name": "EdgeOnly", "url": "algo/routers.py"},
        ]
        self.algorithm: dict[str, Any] = {"paradigm_type": "jointinference", "modules": self.modules}
        self.job: dict[str, Any] = {
            "name": "job",
            "workspace": "workspace",
            "testenv": "testenv.yaml",
            "test_object": {"type": "algorithms", "algorithms": [{"name": "routing", "url": "algorithm.yaml"}]},
            "rank": {"sort_by": [{"Accuracy": "descend"}]},
        }

    def plugin(self, path: str, text: str) -> Path:
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text), encoding="utf-8")
        return file

    def define(self, path: str, alias: str, body: str, kind: str = "GENERAL") -> None:
        """Write a plugin file with one class, which is registered under ``alias``."""
        head = "from sedna.common.class_factory import ClassFactory, ClassType\n"
        head += f'@ClassFactory.register(ClassType.{kind}, alias="{alias}")\nclass {alias}:\n'
        self.plugin(path, head + textwrap.indent(textwrap.dedent(body).lstrip("\n"), "    "))

    def rows(self, rows: list[Any]) -> None:
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        (self.folder / "data.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")

    def add_algorithm(self, name: str, modules: list[dict[str, Any]]) -> None:
        self.job["test_object"]["algorithms"].append({"name": name, "url": f"{name}.yaml"})
        self.write(f"{name}.yaml", {"algorithm": {"paradigm_type": "jointinference", "modules": modules}})

    def hyperparameters(self, module: int, **grid: list[Any]) -> None:
        self.modules[module]["hyperparameters"] = [{name: {"values": values}} for name, values in grid.items()]

    def write(self, name: str, data: Any) -> None:
        text = yaml.dump(data, Dumper=DUMPER, sort_keys=False)
        (self.folder / name).write_text(text, encoding="utf-8")

    def save(self) -> str:
        self.write("algorithm.yaml", {"algorithm": self.algorithm})
        self.write("testenv.yaml", {"testenv": self.env})
        self.write("job.yaml", {"benchmarkingjob": self.job})
        return "job.yaml"

    def run(self, *options: str) -> int:
        return main(["-f", self.save(), *options])

    def checked(self, capfd: pytest.CaptureFixture[str], code: int = 0) -> list[str]:
        """The lines of standard error of ``ianvs check``, which ends with this exit code."""
        assert main(["check", "-f", self.save()]) == code
        return capfd.readouterr().err.splitlines()

    def line_of(self, file: str, text: str) -> int:
        lines = (self.folder / file).read_text(encoding="utf-8").splitlines()
        return next(i for i, line in enumerate(lines, 1) if text in line)

    def leaderboard(self, which: str = "all") -> list[dict[str, str]]:
        file = self.folder / "workspace" / "job" / "rank" / f"{which}_rank.csv"
        if not file.exists():
            return []
        with open(file, encoding="utf-8", newline="") as stream:
            return list(csv.DictReader(stream))

    def case_folder(self, row: int = 0) -> Path:
        return self.folder / self.leaderboard()[row]["url"]


def answers(job: Job, row: int = 0) -> list[dict[str, Any]]:
    """The lines of a test case's answers; ``row``: its row on the leaderboard."""
    return [json.loads(line) for line in (job.case_folder(row) / "answers.jsonl").read_text().splitlines()]
