"""``ianvs check`` tells what upstream Ianvs would refuse or ignore; a run does not speak of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.cmd.benchmarking import main
from tests.host.host_job import EDGE, Job

HEAD = "from sedna.common.class_factory import ClassFactory, ClassType\n"


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


def edge(job: Job, body: str, head: str = 'import os\nos.environ["BACKEND_TYPE"] = "TORCH"\n') -> None:
    path = 'os.environ["model_path"] = "org/model"\n' if "import os" in head else ""
    text = f'@ClassFactory.register(ClassType.GENERAL, alias="EdgeModel")\nclass EdgeModel:\n{body}'
    job.plugin("algo/edge_model.py", head + path + HEAD + text)


def test_a_job_that_upstream_would_run(portable: Job, capfd: pytest.CaptureFixture[str]) -> None:
    assert upstream(portable, capfd) == []


def test_a_cloud_model_without_keywords(portable: Job, capfd: pytest.CaptureFixture[str]) -> None:
    portable.define("algo/cloud_model.py", "CloudModel", "def inference(self, data, post_process=None): ...")
    (line,) = upstream(portable, capfd)
    place = portable.line_of("algorithm.yaml", "name: CloudModel")
    assert line.startswith(f"ianvs: warning: algorithm.yaml:{place}: upstream Ianvs would fail: ")
    assert "inference() is called with mining_mode as well" in line


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("    def predict(self, x, **kw): pass\n", "its first parameter is x: rename it"),
        ("    def predict(self, data): pass\n", "predict() is called with mining_mode as well"),
        ("    def predict(self, *args, **kw): pass\n", ""),
        ("    def predict(self, data, mining_mode=None): pass\n", ""),
    ],
)
def test_how_predict_is_called(portable: Job, capfd: pytest.CaptureFixture[str], body: str, message: str) -> None:
    edge(portable, body)
    assert [message in line for line in upstream(portable, capfd)] == [True] * bool(message)


def test_variables_that_sedna_needs(portable: Job, capfd: pytest.CaptureFixture[str]) -> None:
    edge(portable, "    def predict(self, data, **kw): pass\n", head="")
    lines = "\n".join(upstream(portable, capfd))
    assert "the environment variable BACKEND_TYPE is set nowhere" in lines
    assert "the environment variable model_path is set nowhere" in lines


def test_load_without_keywords(portable: Job, capfd: pytest.CaptureFixture[str]) -> None:
    body = "    def load(self): pass\n    def predict(self, data): pass\n"
    edge(portable, body, head='import os\nos.environ["BACKEND_TYPE"] = "OWN"\n')
    (line,) = upstream(portable, capfd)
    assert "load() is called with model_url" in line


def test_data_and_module_that_upstream_asks_for(portable: Job, capfd: pytest.CaptureFixture[str]) -> None:
    del portable.env["dataset"]["train_data"]
    portable.env["hard_example_mining_mode"] = "self-design"
    portable.modules.pop()
    lines = "\n".join(upstream(portable, capfd))
    assert "the training data is missing" in lines
    assert "asks for a module of type hard_example_mining" in lines


def test_what_upstream_ignores(portable: Job, capfd: pytest.CaptureFixture[str]) -> None:
    portable.job.update(repeats=2, concurrency=2, runner="local")
    portable.env["on_malformed_row"] = "skip"
    told = upstream(portable, capfd)
    assert [line.rpartition(" ")[2] for line in told] == ["concurrency", "repeats", "runner", "on_malformed_row"]
    assert portable.run() == 0
    assert "upstream" not in capfd.readouterr().err


def test_files_that_upstream_would_not_find_or_mix_up(
    portable: Job, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    portable.plugin("other/edge_model.py", (portable.folder / "algo/edge_model.py").read_text())
    portable.plugin("other/answers.py", (portable.folder / "algo/answers.py").read_text())
    others = [dict(module) for module in portable.modules]
    others[0]["url"] = "other/edge_model.py"
    portable.add_algorithm("second", others)
    (line,) = upstream(portable, capfd)
    assert "upstream Ianvs would run algo/edge_model.py in place of other/edge_model.py" in line
    elsewhere = portable.folder / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    lines = upstream(portable, capfd, str(Path("..") / "job.yaml"))
    assert any("testenv.yaml is found beside job.yaml only" in line for line in lines)
    assert any("algo/edge_model.py is found beside algorithm.yaml only" in line for line in lines)


def test_selected_items_that_upstream_asks_for(portable: Job, capfd: pytest.CaptureFixture[str]) -> None:
    portable.job["rank"]["selected_dataitem"] = {"metrics": ["Accuracy"]}
    (line,) = upstream(portable, capfd)
    assert "selected_dataitem names no paradigms and no modules and no hyperparameters" in line
