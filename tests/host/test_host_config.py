"""Every fault of the configuration is told before a model is loaded: exit code 2, file, line, key, nearest valid name."""

# ruff: noqa: E501 - the tables below read best with one case per line

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core.cmd.benchmarking import main
from tests.host.host_job import Job
from tests.support.paths import EXAMPLE

Change = Callable[[Job], Any]


def refused(job: Job, capfd: pytest.CaptureFixture[str], *options: str) -> str:
    """Run a job that must be refused; what is on standard error."""
    job.define(
        "algo/edge_model.py",
        "EdgeModel",
        """
        def __init__(self, model="", seed=0):
            raise AssertionError("built in spite of the fault")
        def predict(self, data):
            pass
        """,
    )
    assert main(["-f", job.save(), *options]) == 2
    error = capfd.readouterr().err
    assert "Traceback" not in error
    assert not (job.folder / "workspace").exists()
    return error


def rename(mapping: dict[str, Any], old: str, new: str) -> None:
    entries = [(new if key == old else key, value) for key, value in mapping.items()]
    mapping.clear()
    mapping.update(entries)


MISSPELT: list[tuple[str, Change, str, str, str]] = [
    ("workspace", lambda j: rename(j.job, "workspace", "workspce"), "job.yaml", "workspce:", "Did you mean 'workspace'?"),
    ("sort_by", lambda j: rename(j.job["rank"], "sort_by", "sortby"), "job.yaml", "sortby:", "Did you mean 'sort_by'?"),
    ("metrics", lambda j: rename(j.env, "metrics", "metric"), "testenv.yaml", "metric:", "Did you mean 'metrics'?"),
    ("modules", lambda j: rename(j.algorithm, "modules", "module"), "algorithm.yaml", "module:", "Did you mean 'modules'?"),
    ("values", lambda j: j.modules[0].update(hyperparameters=[{"seed": {"value": [1]}}]), "algorithm.yaml", "value:", "Did you mean 'values'?"),
    ("others", lambda j: j.hyperparameters(0, other_hyperparams=["x.yaml"]), "algorithm.yaml", "other_hyperparams:", "'other_hyperparameters'?"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "file", "text", "nearest"), [m[1:] for m in MISSPELT], ids=[m[0] for m in MISSPELT])
def test_a_misspelt_key(
    job: Job, capfd: pytest.CaptureFixture[str], change: Change, file: str, text: str, nearest: str
) -> None:
    change(job)
    error = refused(job, capfd)
    key = text.rstrip(":")
    line = job.line_of(file, text)
    assert f"{file}:{line}: unknown key {key!r}" in error
    assert nearest in error
    assert "is missing" not in error, "the key that was meant is not missing, it is misspelt"


WRONG: list[tuple[str, Change, str, str, str]] = [
    ("workspace with a NUL", lambda j: j.job.update(workspace="a\0b"), "job.yaml", "workspace:", "is not a valid folder name"),
    ("string for a list", lambda j: j.env.update(metrics="Accuracy"), "testenv.yaml", "metrics:", "metrics must be a list, got the string 'Accuracy'"),
    ("no values", lambda j: j.hyperparameters(0, seed=[]), "algorithm.yaml", "seed:", "seed has no values"),
    ("two in one item", lambda j: j.modules[0].update(hyperparameters=[{"seed": {"values": [1]}, "model": {"values": [2]}}]), "algorithm.yaml", "- seed:", "is written '- NAME: {values: [...]}'"),
    ("direction", lambda j: j.job["rank"].update(sort_by=[{"Accuracy": "descending"}]), "job.yaml", "Accuracy:", "must be ascend or descend, got the string 'descending'. Did you mean 'descend'?"),
    ("sort metric", lambda j: j.job["rank"].update(sort_by=[{"Acuracy": "descend"}]), "job.yaml", "Acuracy:", "is not a metric of the testenv file. Did you mean 'Accuracy'?"),
    ("pictures", lambda j: j.job["rank"].update(save_mode="selected_and_all_and_picture"), "job.yaml", "save_mode:", "lifelong learning"),
    ("selected metric", lambda j: j.job["rank"].update(selected_dataitem={"metrics": ["Edge Rato"]}), "job.yaml", "Edge Rato", "Did you mean 'Edge Ratio'?"),
    ("selected hyperparameter", lambda j: (j.hyperparameters(0, seed=[1]), j.job["rank"].update(selected_dataitem={"hyperparameters": ["edgemodel-sede"]})), "job.yaml", "edgemodel-sede", "Did you mean 'edgemodel-seed'?"),
    ("module type", lambda j: j.modules[0].update(type="edge_model"), "algorithm.yaml", "type: edge_model", "Did you mean 'edgemodel'?"),
    ("incremental_rounds", lambda j: j.env.update(incremental_rounds=1), "testenv.yaml", "incremental_rounds:", "2 or more"),
    ("other paradigm", lambda j: j.algorithm.update(paradigm_type="lifelonglearning"), "algorithm.yaml", "paradigm_type:", "for lifelonglearning, use upstream KubeEdge Ianvs"),
    ("unknown paradigm", lambda j: j.algorithm.update(paradigm_type="jointinfrence"), "algorithm.yaml", "paradigm_type:", "Did you mean 'jointinference'?"),
    ("simulation", lambda j: j.job.update(simulation={}), "job.yaml", "simulation:", "only upstream KubeEdge Ianvs builds a simulation"),
    ("missing module", lambda j: j.modules.pop(2), "algorithm.yaml", "modules:", "needs a module of type hard_example_mining"),
    ("missing sides", lambda j: j.env.update(hard_example_mining_mode="mining-free"), "algorithm.yaml", "modules:", "needs a module of type drafter and verifier"),
    ("module twice", lambda j: j.modules.append(dict(j.modules[0])), "algorithm.yaml", "- type: edgemodel", "a second module of type edgemodel"),
    ("hyperparameter twice", lambda j: j.modules[0].update(hyperparameters=[{"seed": {"values": [1]}}, {"seed": {"values": [2]}}]), "algorithm.yaml", "- seed:", "duplicate hyperparameter"),
    ("column name", lambda j: j.env["metrics"].append({"name": "time", "url": "env/metrics.py"}), "testenv.yaml", "name: time", "a column of every leaderboard"),
    ("no metrics", lambda j: j.env.update(metrics=[]), "testenv.yaml", "metrics:", "metrics is empty"),
    ("no algorithms", lambda j: j.job["test_object"].update(algorithms=[]), "job.yaml", "algorithms:", "algorithms is empty"),
    ("algorithm twice", lambda j: j.job["test_object"]["algorithms"].append({"name": "routing", "url": "algorithm.yaml"}), "job.yaml", "- name: routing", "a second algorithm"),
    ("folder name", lambda j: j.job["test_object"]["algorithms"][0].update(name="../up"), "job.yaml", "name: ../up", "becomes a folder"),
    ("name of the leaderboards", lambda j: j.job["test_object"]["algorithms"][0].update(name="rank"), "job.yaml", "name: rank", "becomes a folder"),
    ("empty name", lambda j: j.job.update(name=""), "job.yaml", "name:", "name must not be empty"),
    ("no url", lambda j: j.modules[0].pop("url"), "algorithm.yaml", "- type: edgemodel", "the key 'url' is missing"),
    ("metric alias", lambda j: j.env["metrics"][0].update(name="Acuracy") or j.job["rank"].update(sort_by=[]), "testenv.yaml", "name: Acuracy", "registers nothing as 'Acuracy'. Did you mean 'Accuracy'?"),
    ("class alias", lambda j: j.modules[1].update(name="CloudModle"), "algorithm.yaml", "name: CloudModle", "registers nothing as 'CloudModle'. Did you mean 'CloudModel'?"),
    ("wrong class type", lambda j: j.modules[0].update(name="EdgeOnly", url="algo/routers.py"), "algorithm.yaml", "name: EdgeOnly", "is registered as ClassType.HEM, but this needs ClassType.GENERAL"),
    ("wrong class", lambda j: j.modules[0].update(name="CloudModel", url="algo/cloud_model.py"), "algorithm.yaml", "name: CloudModel", "edgemodel CloudModel has no method predict"),
    ("hyperparameter name", lambda j: j.hyperparameters(0, seed=[1], modle=["m"]), "algorithm.yaml", "modle:", "unknown hyperparameter 'modle' of EdgeModel. Did you mean 'model'?"),
    ("algorithm file", lambda j: j.job["test_object"]["algorithms"][0].update(url="algoritm.yaml"), "job.yaml", "url: algoritm.yaml", "file not found: algoritm.yaml. Did you mean 'algorithm.yaml'"),
    ("no yaml", lambda j: j.job.update(testenv="data.jsonl"), "job.yaml", "testenv:", "data.jsonl is not a .yaml or .yml file"),
    ("data file", lambda j: j.env.update(dataset={"test_data": "dat.jsonl"}), "testenv.yaml", "test_data:", "file not found: dat.jsonl. Did you mean 'data.jsonl'"),
    ("data format", lambda j: j.env.update(dataset={"test_data": "data.csv"}), "testenv.yaml", "test_data:", "joint inference reads test_data: a .jsonl file"),
    ("no data", lambda j: j.env.update(dataset={"train_data": "data.jsonl"}), "testenv.yaml", "dataset:", "the test data is missing"),
    ("other hyperparameters", lambda j: j.hyperparameters(0, other_hyperparameters=["nope.yaml"]), "algorithm.yaml", "- nope.yaml", "file not found: nope.yaml"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "file", "text", "message"), [w[1:] for w in WRONG], ids=[w[0] for w in WRONG])
def test_a_wrong_value(
    job: Job, capfd: pytest.CaptureFixture[str], change: Change, file: str, text: str, message: str
) -> None:
    change(job)
    error = refused(job, capfd)
    lines = (job.folder / file).read_text().splitlines()
    places = [f"{file}:{i}: " for i, line in enumerate(lines, 1) if text in line]
    told = [line for line in error.splitlines() if message in line]
    assert told, error
    assert any(place in told[0] for place in places), told[0]


YAML = [
    ("010", "YAML reads 010 as 8"), ("08", "YAML reads 08 as 08 (a text)"), ("1:30", "YAML reads 1:30 as 90"),
    ("off", "unknown dtype False. YAML reads on and yes, off and no so"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "told"), YAML)
def test_what_yaml_does_not_read_as_it_looks(
    job: Job, value: str, told: str, capfd: pytest.CaptureFixture[str]
) -> None:
    job.modules[0].update(url=str(EXAMPLE / "testalgorithms/query-routing/edge_model.py"))
    job.modules[0]["hyperparameters"] = [
        {"model": {"values": [str(EXAMPLE / "models/edge")]}},
        {"dtype": {"values": ["X"]}},
    ]
    job.save()
    file = job.folder / "algorithm.yaml"
    text = file.read_text(encoding="utf-8").replace("- X", f"- {value}")
    file.write_text(text, encoding="utf-8")
    assert main(["check", "-f", "job.yaml"]) == 2
    line = next(number for number, line in enumerate(text.splitlines(), 1) if "dtype" in line or f"- {value}" in line)
    error = capfd.readouterr().err
    assert re.search(rf"algorithm.yaml:({line}|{line + 2}): ", error)
    assert "dtype" in error
    assert told in error


def test_numbers_as_people_write_them(job: Job) -> None:
    from core.common.document import Document

    (job.folder / "a.yaml").write_text("[1e-1, 1.5e3, 1_000, 0x1F, 0, 0.5, -2]\n", encoding="utf-8-sig")
    assert Document("a.yaml").data == [0.1, 1500.0, 1000, 31, 0, 0.5, -2]


def test_a_metric_that_is_none_of_many(job: Job, capfd: pytest.CaptureFixture[str]) -> None:
    job.env["metrics"] = [{"name": "Acuracy", "url": str(EXAMPLE / "testenv/metrics.py")}]
    error = refused(job, capfd)
    assert "metrics.py registers nothing as 'Acuracy'. Did you mean 'Accuracy'?" in error
    assert len(error) < 500


def test_all_faults_are_told_at_once(job: Job, capfd: pytest.CaptureFixture[str]) -> None:
    job.job["workspce"] = "x"
    job.env["metrisc"] = []
    job.modules[0]["ulr"] = "x"
    error = refused(job, capfd)
    assert len(error.splitlines()) == 3


def test_an_unknown_other_hyperparameter_is_placed_in_its_own_file(job: Job, capfd: pytest.CaptureFixture[str]) -> None:
    job.write("base.yaml", {"seed": 1, "modle": "m"})
    job.hyperparameters(0, other_hyperparameters=["base.yaml"])
    assert "base.yaml:2: unknown hyperparameter 'modle'" in refused(job, capfd)


def test_a_key_within_a_value_is_placed_in_its_own_line(job: Job, capfd: pytest.CaptureFixture[str]) -> None:
    job.define(
        "algo/cloud_model.py",
        "CloudModel",
        """
        @classmethod
        def check_hyperparameters(cls, hyperparameters):
            if "Eagel" in hyperparameters["head"]:
                unfit = ValueError("unknown back end 'Eagel' in head. Did you mean 'Eagle'?")
                unfit.key = "head"
                raise unfit
        def inference(self, data, head):
            pass
        """,
    )
    job.hyperparameters(1, head=[{"Eagle": 1}, {"Eagle": 1, "Eagel": 2}])
    error = refused(job, capfd)
    assert f"algorithm.yaml:{job.line_of('algorithm.yaml', 'Eagel')}: cloudmodel CloudModel: unknown back end" in error


CLASS = """
def __init__(self, model): ...
def predict(self, data): ...
def __call__(self): ...
"""


def test_a_hyperparameter_without_default_is_needed(job: Job, capfd: pytest.CaptureFixture[str]) -> None:
    job.define("algo/cloud_model.py", "CloudModel", CLASS.replace("predict", "inference"))
    assert "cloudmodel CloudModel needs the hyperparameter 'model'" in refused(job, capfd)


def test_an_edge_model_that_sedna_would_call(job: Job, capfd: pytest.CaptureFixture[str]) -> None:
    job.define("algo/callable.py", "Callable", CLASS)
    job.modules[0].update(name="Callable", url="algo/callable.py")
    assert "Sedna would call the model as a factory" in refused(job, capfd)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import no_such_package\n", "No module named 'no_such_package' (algo/cloud_model.py:1"),
        ("def broken(:\n", "SyntaxError"),
    ],
)
def test_a_plugin_file_that_cannot_be_imported(
    job: Job, capfd: pytest.CaptureFixture[str], code: str, message: str
) -> None:
    job.plugin("algo/cloud_model.py", code)
    error = refused(job, capfd)
    assert f"algorithm.yaml:{job.line_of('algorithm.yaml', 'cloud_model.py')}: " in error
    assert message in error.replace("\\", "/")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("benchmarkingjob:\n  name: [\n", "job.yaml:3: not valid YAML"),
        ("benchmarkingjob:\n  name: a\n  name: b\n", "job.yaml:3: the key 'name' is a duplicate, first in line 2"),
        ("benchmarkjob:\n  name: a\n", "job.yaml:1: unknown key 'benchmarkjob'; the file must begin with the key 'benchmarkingjob'"),
        ("benchmarkingjob:\n  name: a\nrank: {}\n", "job.yaml:3: unknown key 'rank' next to 'benchmarkingjob'"),
        ("benchmarkingjob: &a\n  name: *a\n", "job.yaml:1: an anchor that contains itself"),
        ("", "job.yaml:1: the file must begin with the key 'benchmarkingjob'"),
        ("\x00", "job.yaml:1: not valid YAML: unacceptable character"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(text)
    assert main(["-f", "job.yaml"]) == 2
    error = capfd.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_no_job_at_all(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([])
    assert stop.value.code == 2
    assert "ianvs -f benchmarkingjob.yaml" in capfd.readouterr().err


def test_keys_of_other_paradigms_are_accepted(job: Job) -> None:
    job.env.update(model_eval={"threshold": 0.9}, incremental_rounds=2, round=1, client_number=1, use_gpu=False)
    job.env["dataset"].update(train_data="not/there.jsonl", label="y")
    job.algorithm.update(initial_model_url="x", fl_data_setting={})
    assert job.run() == 0


def test_another_distribution_called_sedna(
    job: Job, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    info = job.folder / "site" / "sedna-0.1.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sedna\nVersion: 0.1.2\n")
    monkeypatch.syspath_prepend(str(info.parent))
    assert "'sedna' 0.1.2 is an unrelated mathematics package" in refused(job, capfd)
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: sedna\nVersion: 0.6.0.1\nHome-page: https://github.com/kubeedge/sedna\n"
    )
    assert "is KubeEdge Sedna, which this host replaces" in refused(job, capfd)
