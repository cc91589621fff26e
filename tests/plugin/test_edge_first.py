"""A cascade where Ianvs asks the router first: the edge is asked once, and its work counts whoever answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.plugin import observers
from ianvs_specdec.plugin.models import CloudModel, EdgeModel
from ianvs_specdec.report.metrics.table import Table
from ianvs_specdec.routing.learned.uncertainty import EarlyModel, UncertaintyModel
from ianvs_specdec.routing.routers import router
from sedna.core.joint_inference import JointInference

SETTINGS = {"backend": "autoregressive", "dtype": "float32", "max_tokens": 8}


class Observer:
    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []

    def began(self, side: str, data: Any) -> None:
        self.heard.append(("began", side))

    def ended(self, side: str, data: Any, response: Any) -> None:
        self.heard.append(("ended", side))


def answers(model: Path, mode: str, threshold: float, count: int = 3) -> list[Any]:
    edge = EdgeModel(model=str(model), logprobs=True, **SETTINGS)
    cloud = CloudModel(model=str(model), **SETTINGS, price_completion=1.0)
    cascade = router("CascadeRouter")(signal="mean_probability", threshold=threshold)
    job = JointInference(edge, cloud)
    job.hard_example_mining_algorithm = cascade
    rows = [{"query": f"question {index}", "gold": "B", "index": index} for index in range(count)]
    found = [job.inference(row, mining_mode=mode) for row in rows]
    assert not any("edge_answer" in row for row in rows)
    return found


def columns(results: list[Any]) -> dict[str, list[float]]:
    table = Table(["B"] * len(results), results)
    names = ("edge_prompt", "edge_completion", "cloud_prompt", "cloud_completion", "cloud_cost", "hard")
    return {name: table.query(name).tolist() for name in names}


@pytest.mark.parametrize("threshold", [0.0, 1.0])
def test_both_modes_count_the_same_work(job: Path, tiny_model: Path, threshold: float) -> None:
    after, before = (
        answers(tiny_model, mode, threshold) for mode in ("inference-then-mining", "mining-then-inference")
    )
    assert columns(before) == columns(after)
    assert columns(before)["hard"] == [1.0 - threshold] * 3
    assert all(count > 0 for count in columns(before)["edge_completion"])
    # The user waits for the edge's answer before the cloud is asked.
    for hard, result, edge, cloud in before:
        latency = Table(["B"], [[hard, result, edge, cloud]]).query("latency")[0]
        first = (cloud or {}).get("edge_answer")
        waited = first["perf"]["latency"] if first else 0.0
        assert latency == pytest.approx(result["perf"]["latency"] + waited)
        assert result["routing"]["router"] == "CascadeRouter"


def test_the_edge_is_asked_once_and_its_time_is_not_the_routers(job: Path, tiny_model: Path) -> None:
    for threshold, heard in ((1.0, ["edge"]), (0.0, ["edge", "cloud"])):
        observer = Observer()
        observers.subscribe(observer)
        ((_, result, _, _),) = answers(tiny_model, "mining-then-inference", threshold, count=1)
        assert observer.heard == [(what, side) for side in heard for what in ("began", "ended")]
        edge = result.get("edge_answer", result)
        assert 0 <= result["routing"]["seconds"] < edge["perf"]["latency"]


def test_an_answer_that_ends_early_is_the_whole_one(job: Path, tmp_path: Path, tiny_model: Path) -> None:
    row = {"query": "question 0", "gold": "B", "index": 0}
    text = EdgeModel(model=str(tiny_model), **SETTINGS).predict(dict(row))["completion"]
    settings = {"model": str(tiny_model), **SETTINGS, "logprobs": True, "stop": [text[0]]}
    signal = (("max_entropy",), {"max_entropy": 1.0}, 0.0, 1.0)
    file = tmp_path / "cascade.json"
    UncertaintyModel(*signal, early=EarlyModel(3, UncertaintyModel(*signal))).save(file)
    ended = JointInference(EdgeModel(**settings), CloudModel(model=str(tiny_model), **SETTINGS))
    ended.hard_example_mining_algorithm = router("CascadeRouter")(calibration=str(file), decide_after=3)
    _, first, _, _ = ended.inference(dict(row), mining_mode="mining-then-inference")
    again = EdgeModel(**settings).predict(dict(row))
    assert first["turns"][0]["finish_reason"] == "stop"
    assert (again["cached"], again["completion"]) == (True, first["completion"])
