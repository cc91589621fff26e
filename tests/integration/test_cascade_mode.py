"""The cascade as Ianvs drives it after the edge has answered: what it decides, what it costs, what it replays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.plugin.models import CloudModel, EdgeModel
from ianvs_specdec.report.metrics.table import Table
from ianvs_specdec.routing.routers.cascade import CascadeRouter
from tests.support import journals
from tests.support.harness import EXAMPLE

pytest.importorskip("sedna.core.joint_inference", reason="needs the host: pip install -e host")
LINES = (EXAMPLE / "dataset" / "knowledge" / "test.jsonl").read_text(encoding="utf-8").splitlines()[::44]
MODE = {"mining_mode": "inference-then-mining"}


@pytest.fixture(autouse=True)
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RESULT_SAVED_URL", str(tmp_path / "job" / "cascade"))
    monkeypatch.setenv("IANVS_RUN_ID", "run-1")
    for name in ("BACKEND_TYPE", "model_path"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return tmp_path / "job"


def rows() -> list[dict[str, Any]]:
    told = [json.loads(line) for line in LINES]
    return [{"query": row["question"], "gold": row["answer"], "index": index} for index, row in enumerate(told)]


def inferred(threshold: float, **edge: Any) -> tuple[list[dict[str, Any]], list[Any]]:
    """The rows, and what Ianvs hands to the metrics."""
    from sedna.core.joint_inference import JointInference

    common = {"dtype": "float32", "threads": 1, "max_tokens": 64, "backend": "autoregressive"}
    models = EXAMPLE / "models"
    router = {"method": CascadeRouter, "param": {"signal": "sequence_probability", "threshold": threshold}}
    models_of_case = (
        EdgeModel(model=str(models / "edge"), **common, **edge),
        CloudModel(model=str(models / "cloud"), **common, price_completion=1.0),
    )
    case = JointInference(estimator=models_of_case[0], cloud=models_of_case[1], hard_example_mining=router)
    asked = rows()
    try:
        return asked, [case.inference(row, **MODE) for row in asked]
    finally:
        for model in models_of_case:
            model.cleanup()


@pytest.mark.slow
def test_what_is_in_doubt_is_escalated_and_the_edge_s_work_counts() -> None:
    asked, results = inferred(0.5, logprobs=True)
    hard = [result[0] for result in results]
    assert set(hard) == {True, False}
    for row, (is_hard, result, edge, cloud) in zip(asked, results, strict=True):
        assert row["routing"]["hard"] is is_hard is (row["routing"]["score"] >= 0.5)
        assert result["routing"] == row["routing"]
        assert (cloud is not None) == is_hard
        assert result["side"] == ("cloud" if is_hard else "edge")
        assert len(edge["turns"][0]["trace"]["confidence"]) == len(edge["turns"][0]["token_ids"])
    table = Table([row["gold"] for row in asked], results)
    for index, (is_hard, result, edge, _) in enumerate(results):
        waited = edge["perf"]["latency"] if is_hard else 0.0
        assert table.query("latency")[index] == pytest.approx(waited + result["perf"]["latency"])
        assert table.query("ttft")[index] == pytest.approx(waited + result["perf"]["time_to_first_token"])
        assert table.query("edge_completion")[index] == edge["usage"]["completion_tokens"] > 0
        # The router's own time, in which nobody answers.
        assert table.query("routing")[index] == result["routing"]["seconds"]
        assert bool(table.query("cloud_cost")[index] > 0) is is_hard


@pytest.mark.slow
def test_another_threshold_asks_the_edge_nothing_anew(job: Path) -> None:
    inferred(0.3, logprobs=True, samples=2)
    before = journals.answers(job)
    _, everything = inferred(1.0, logprobs=True, samples=2)
    assert not any(result[0] for result in everything)
    assert journals.answers(job) == before
    assert all(len(result[1]["samples"]) == 1 for result in everything)
