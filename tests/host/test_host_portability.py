"""``ianvs check`` tells what upstream Ianvs would refuse or ignore; a run does not speak of it."""

# ruff: noqa: E501 - the table below reads best with one case per line

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core.cmd.benchmarking import main
from tests.host.host_job import EDGE, Job


@pytest.fixture
def portable(job: Job, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A job that upstream, too, would run."""
    for name in ("BACKEND_TYPE", "MODEL_PATH", "MODEL_URL", "model_path"):
        monkeypatch.delenv(name, raising=False)
    job.plugin("algo/edge_model.py", EDGE.replace('"TORCH"\n', '"TORCH"\nos.environ["model_path"] = "org/model"\n'))
    job.env["dataset"]["train_data"] = "data.jsonl"
    return job


def upstream(job: Job, capfd: pytest.CaptureFixture[str], file: str = "") -> list[str]:
    assert main(["check", "-f", file or job.save()]) == 0
    return [line for line in capfd.readouterr().err.splitlines() if "upstream" in line]


def edge(job: Job, body: str, variables: str = 'environ.update(BACKEND_TYPE="TORCH", model_path="org/model")') -> None:
    job.define("algo/edge_model.py", "EdgeModel", f"from os import environ\n{variables}\n{body}")


REFUSED: list[tuple[str, Callable[[Job], Any], list[str]]] = [
    ("nothing", lambda j: None, []),
    ("a cloud model without keywords", lambda j: j.define("algo/cloud_model.py", "CloudModel", "def inference(self, data, post_process=None): ..."), ["inference() is called with mining_mode as well"]),
    ("another first parameter", lambda j: edge(j, "def predict(self, x, **kw): ..."), ["its first parameter is x: rename it"]),
    ("predict without keywords", lambda j: edge(j, "def predict(self, data): ..."), ["predict() is called with mining_mode as well"]),
    ("any parameters", lambda j: edge(j, "def predict(self, *args, **kw): ..."), []),
    ("the keyword by name", lambda j: edge(j, "def predict(self, data, mining_mode=None): ..."), []),
    ("no variables", lambda j: edge(j, "def predict(self, data, **kw): ...", ""), ["variable BACKEND_TYPE is not set", "variable model_path is not set"]),
    ("load without keywords", lambda j: edge(j, "def load(self): ...\ndef predict(self, data): ...", 'environ.update(BACKEND_TYPE="OWN", model_path="a/b")'), ["load() is called with model_url"]),
    ("no training data", lambda j: j.env["dataset"].pop("train_data"), ["the training data is missing"]),
    ("no router", lambda j: (j.modules.pop(), j.env.update(hard_example_mining_mode="self-design")), ["requires a module of type hard_example_mining"]),
    ("keys of this host", lambda j: (j.job.update(repeats=2, concurrency=2, runner="local"), j.env.update(on_malformed_row="skip")), ["concurrency", "repeats", "runner", "on_malformed_row"]),
    ("few selected items", lambda j: j.job["rank"].update(selected_dataitem={"metrics": ["Accuracy"]}), ["selected_dataitem names no paradigms and no modules and no hyperparameters"]),
]  # fmt: skip


@pytest.mark.parametrize(("change", "told"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
def test_what_upstream_would_refuse_or_ignore(
    portable: Job, capfd: pytest.CaptureFixture[str], change: Callable[[Job], Any], told: list[str]
) -> None:
    change(portable)
    lines = upstream(portable, capfd)
    assert all(re.match(r"ianvs: warning: \w+\.yaml:\d+: upstream Ianvs ", line) for line in lines)
    assert [words in line for words, line in zip(told, lines, strict=True)] == [True] * len(told)
    portable.run()
    assert "upstream" not in capfd.readouterr().err, "a run does not speak of it"


def test_files_that_upstream_would_not_find_or_mix_up(
    portable: Job, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    portable.plugin("other/edge_model.py", (portable.folder / "algo/edge_model.py").read_text())
    portable.plugin("other/answers.py", (portable.folder / "algo/answers.py").read_text())
    others = [dict(module) for module in portable.modules]
    others[0]["url"] = "other/edge_model.py"
    portable.add_algorithm("second", others)
    (line,) = upstream(portable, capfd)
    assert "upstream Ianvs would run algo/edge_model.py instead of other/edge_model.py" in line
    elsewhere = portable.folder / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    lines = upstream(portable, capfd, str(Path("..") / "job.yaml"))
    assert any("testenv.yaml is in the folder of job.yaml only" in line for line in lines)
    assert any("algo/edge_model.py is in the folder of algorithm.yaml only" in line for line in lines)
