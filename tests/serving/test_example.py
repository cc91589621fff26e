"""The example job whose cloud model is a server."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.harness import EXAMPLE, Run, Workplace, questions
from tests.support.jsonl import read_jsonl
from tests.support.models import build_model

from .conftest import serving

JOB = "benchmarkingjob_cloud_server.yaml"
TOKENS = 12


@pytest.fixture
def workplace(tmp_path: Path) -> Workplace:
    pytest.importorskip("core.cmd.benchmarking", reason="needs the ianvs command: pip install -e host")
    (tmp_path / "home").mkdir()
    (tmp_path / "work").mkdir()
    place = Workplace(tmp_path / "work", tmp_path / "home")
    shutil.copy(EXAMPLE / JOB, place.example)
    place.workspace = place.root / "workspace" / "cloud-edge-with-cloud-server"
    return place


def rewrite(file: Path, **values: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {**yaml.safe_load(file.read_text(encoding="utf-8")), **values}
    file.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return settings


def test_shipped_settings_match_the_cloud_model() -> None:
    shipped = {
        name: yaml.safe_load((EXAMPLE / "testalgorithms" / "query-routing" / f"{name}.yaml").read_text())
        for name in ("cloud_settings", "cloud_server_settings")
    }
    for name, value in shipped["cloud_server_settings"]["api_baseline"].items():
        assert value == shipped["cloud_settings"][name]
    for name in ("max_tokens", "temperature", "top_p", "repetition_penalty", "price_prompt", "price_completion"):
        assert shipped["cloud_server_settings"][name] == shipped["cloud_settings"][name]


@pytest.mark.slow
def test_job_with_cloud_server(workplace: Workplace, tmp_path: Path) -> None:
    edge, cloud = (build_model(tmp_path / name, seed=seed, window=4096) for seed, name in enumerate(("edge", "cloud")))
    workplace.backends("autoregressive", cloud="autoregressive")
    workplace.data(questions(5, 1))
    rewrite(workplace.routing / "edge_settings.yaml", model=str(edge), max_tokens=TOKENS)
    local = rewrite(workplace.routing / "cloud_settings.yaml", model=str(cloud), max_tokens=TOKENS)
    settings = str(workplace.routing / "cloud_settings.yaml")
    with serving(tmp_path, "--settings", settings, "--backend", "PromptLookup") as server:
        baseline = {name: local[name] for name in ("model", "dtype", "device", "threads")}
        remote = workplace.routing / "cloud_server_settings.yaml"
        rewrite(remote, api_base_url=server.url, api_baseline=baseline, max_tokens=TOKENS)
        outcome = Run(workplace.root, ["-f", f"examples/{EXAMPLE.name}/{JOB}"], workplace.environment).wait()
        assert outcome.code == 0, outcome.output
        # One question of two turns among the six. What goes to the cloud at ratio 0.5 has been asked at ratio 1.
        metrics = server.metrics()
        assert metrics["requests_total.completed"] == 7
        assert sum(value for name, value in metrics.items() if name.startswith("requests_total.")) == 7
    with (workplace.workspace / "rank" / "all_rank.csv").open(encoding="utf-8", newline="") as file:
        rows = {(row["hard_example_mining"], row["hard_example_mining-ratio"]): row for row in csv.DictReader(file)}
    here, there, half = rows["CloudOnly", ""], rows["RandomRouter", "1.0"], rows["RandomRouter", "0.5"]
    assert {row["Lossless"] for row in (here, there, half)} == {"100.0"}
    for column in ("Accuracy", "Cloud Prompt Tokens", "Cloud Completion Tokens", "Cloud Cost"):
        assert here[column] == there[column]
    assert float(there["Cloud Completion Tokens"]) == metrics["completion_tokens_total"]
    acceptance = metrics["accepted_tokens_total"] / metrics["drafted_tokens_total"]
    assert float(there["Acceptance Rate"]) == pytest.approx(acceptance)
    answers = {name: read_jsonl(workplace.root / rows[name]["url"] / "answers.jsonl") for name in rows}
    said = [
        [row["result"]["completion"] for row in answers[name]] for name in (("CloudOnly", ""), ("RandomRouter", "1.0"))
    ]
    assert said[0] == said[1]
