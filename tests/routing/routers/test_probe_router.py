"""A probe: the edge reads the question, the router looks at its hidden states, and what that takes is counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ianvs_specdec.backends.specdec import EngineLLM
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.plugin.models import EdgeModel
from ianvs_specdec.plugin.timings import REQUESTS
from ianvs_specdec.report.metrics.table import Table
from ianvs_specdec.routing.learned.folder import TrainedRouter
from ianvs_specdec.routing.learned.online import AdaptedClassifier
from ianvs_specdec.routing.routers import build_router, check_router_in_test_case
from ianvs_specdec.routing.routers.learned import UNANSWERED
from ianvs_specdec.workspace.sides import side_answer
from tests.routing.routers.edge_jobs import ROWS, SETTINGS, run
from tests.support import journals
from tests.support.models import build_model


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was asked of the engine, in this order: prompts that were read, and answers."""
    heard: list[str] = []
    generate, encode = EngineLLM.generate, EngineLLM.encode

    def generated(self: Any, *arguments: Any, **more: Any) -> Any:
        heard.append("answer")
        return generate(self, *arguments, **more)

    def encoded(self: Any, *arguments: Any) -> Any:
        heard.append("probe")
        return encode(self, *arguments)

    monkeypatch.setattr(EngineLLM, "generate", generated)
    monkeypatch.setattr(EngineLLM, "encode", encoded)
    return heard


def probe(folder: Path, threshold: float | None = None) -> dict[str, Any]:
    return {"name": "LearnedRouter", "path": str(folder), **({} if threshold is None else {"threshold": threshold})}


@pytest.mark.slow
def test_what_goes_to_the_cloud_has_cost_the_reading(
    job: Path, tiny_model: Path, folder: Path, asked: list[str]
) -> None:
    found = run(tiny_model, probe(folder, 0.0))
    assert asked == ["probe", "answer"] * 4
    table = Table(["B"] * len(found), found)
    for place, (hard, result, _, cloud) in enumerate(found):
        read = result["edge_answer"]
        seconds, tokens = read["prefill"]["seconds"], read["usage"]["prompt_tokens"]
        assert (hard, result["side"], read["side"]) == (True, "cloud", "edge")
        assert tokens == cloud["usage"]["prompt_tokens"]
        assert table.query("edge_cost")[place] == pytest.approx(3e-6 * tokens)
        assert table.query("edge_completion")[place] == 0.0
        assert table.turn("ttft")[place] == pytest.approx(seconds + cloud["perf"]["time_to_first_token"])
        assert table.query("latency")[place] == pytest.approx(seconds + cloud["perf"]["latency"])
        # Three times that are each rounded to the microsecond, half of one off at the most.
        assert table.turn("busy")[place] == pytest.approx(seconds + cloud["perf"]["latency"], abs=2e-6)
        assert result["routing"]["seconds"] > seconds > 0


@pytest.mark.parametrize("threshold", [0.0, 1.0])
def test_a_finished_job_asks_nothing_again(
    job: Path, tiny_model: Path, folder: Path, asked: list[str], new_run: Any, threshold: float
) -> None:
    first = run(tiny_model, probe(folder, threshold))
    asked.clear()
    new_run()
    second = run(tiny_model, probe(folder, threshold))
    assert not asked
    for before, after in zip(first, second, strict=True):
        assert before[1]["routing"] == after[1]["routing"]
        assert before[1]["completion"] == after[1]["completion"]
    tables = [Table(["B"] * 4, found) for found in (first, second)]
    for name in ("ttft", "latency"):
        np.testing.assert_array_equal(*(table.turn(name) for table in tables))
    np.testing.assert_array_equal(*(table.query("edge_cost") for table in tables))


def test_a_question_that_the_edge_cannot_read_goes_to_the_cloud(
    job: Path, tmp_path: Path, tiny_model: Path, folder: Path
) -> None:
    long = [{"query": "long " * 200, "gold": "B", "index": 0}]
    with pytest.raises(UserError, match="context window"):
        run(tiny_model, probe(folder, 1.0), long)
    assert REQUESTS.active == 0
    edge = EdgeModel(model=str(tiny_model), **SETTINGS, max_failures=1)
    router = build_router(probe(folder, 1.0))
    row = dict(long[0])
    assert router(row) is True
    assert row["routing"]["reason"] == UNANSWERED
    edge.cleanup()
    assert REQUESTS.active == 0


def test_another_edge_model_is_refused(job: Path, tmp_path: Path, folder: Path, asked: list[str]) -> None:
    other = build_model(tmp_path / "other", seed=1)
    with pytest.raises(UserError, match="another edge model") as refused:
        run(other, probe(folder))
    assert refused.value.key == "path"
    for router in (probe(folder), lifelong(folder)):
        with pytest.raises(UserError, match="another edge model"):
            check_router_in_test_case(router, {"edgemodel": (EdgeModel, {"model": str(other), **SETTINGS})})
    assert not asked


def test_back_ends_without_hidden_states_are_refused_before_anything_is_asked(tiny_model: Path, folder: Path) -> None:
    modules = {"edgemodel": (EdgeModel, {"model": str(tiny_model), "backend": "api"})}
    for router in (probe(folder), {"name": "BudgetRouter", "router": probe(folder), "cloud_share": 0.5}):
        with pytest.raises(UserError, match="does not return hidden states") as refused:
            check_router_in_test_case(router, modules)
        assert refused.value.key == "path"
    check_router_in_test_case(probe(folder), {"edgemodel": (EdgeModel, {"model": str(tiny_model)})})


def test_a_cascade_has_the_probe_read_the_question_once(
    job: Path, tiny_model: Path, folder: Path, asked: list[str]
) -> None:
    both = {"name": "CascadeRouter", "signal": ["max_entropy", "router"], "router": probe(folder), "threshold": 1.0}
    found = run(tiny_model, both, logprobs=True)
    assert asked == ["probe", "answer"] * 4
    alone = run(tiny_model, probe(folder, 1.0), logprobs=True)
    for (_, result, _, _), (_, one, _, _) in zip(found, alone, strict=True):
        doubts = result["routing"]["doubts"]
        assert doubts["router"] == one["routing"]["score"]
        assert result["routing"]["score"] == pytest.approx((doubts["router"] + doubts["max_entropy"]) / 2)
        assert result["routing"]["seconds"] < result["prefill"]["seconds"] + result["perf"]["latency"]


def lifelong(folder: Path, **more: Any) -> dict[str, Any]:
    return {"name": "LifelongRouter", "path": str(folder), "explore": 0.0, **more}


@pytest.mark.slow
def test_what_learns_on_reads_the_question_once_and_learns_from_its_states(
    job: Path, tmp_path: Path, tiny_model: Path, folder: Path, asked: list[str]
) -> None:
    alone = run(tiny_model, probe(folder, 1.0))
    asked.clear()
    again = [dict(row, query={"turns": [row["query"]], "scorer": "choice"}) for row in ROWS]
    to = tmp_path / "learned"
    found = run(tiny_model, lifelong(folder, threshold=1.0, save_to=str(to), save_every=1), again, seed=1)
    assert asked == ["probe", "answer"] * 4
    scores = [row[1]["routing"]["score"] for row in found]
    first = alone[0][1]["routing"]["score"]
    assert scores[0] == pytest.approx(first, abs=1e-6)
    # Random weights are wrong about every question, and their states are alike.
    saved = TrainedRouter.load(to)
    classifier = saved.classifier
    assert isinstance(classifier, AdaptedClassifier)
    assert len(classifier.learner.memory) == 4
    assert all(past.state is not None for past in classifier.learner.memory)
    asked.clear()
    later = run(tiny_model, {"name": "LearnedRouter", "path": str(to), "threshold": 1.0}, again, seed=2)
    assert [row[1]["routing"]["score"] for row in later] != [row[1]["routing"]["score"] for row in alone]
    goes_on = run(tiny_model, lifelong(to, threshold=1.0), again[:1], seed=3)
    assert goes_on[0][1]["routing"]["score"] == pytest.approx(later[0][1]["routing"]["score"], abs=1e-6)


def test_what_learns_on_takes_no_file_without_states(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "outcomes.csv").write_text("query,edge_correct,cloud_correct\na,1,1\n")
    with pytest.raises(UserError, match="no hidden states") as refused:
        build_router(lifelong(folder, replay=str(tmp_path / "outcomes.csv")))
    assert refused.value.key == "replay"


@pytest.mark.slow
def test_what_stays_is_answered_as_ever_and_has_cost_the_reading(
    job: Path, tiny_model: Path, folder: Path, asked: list[str]
) -> None:
    found = run(tiny_model, probe(folder, 1.0), backend="PromptLookup")
    assert asked == ["probe", "answer"] * 4
    usual = run(tiny_model, "EdgeOnly", use_cache=False)
    table = Table(["B"] * len(found), found)
    for place, ((hard, result, edge, cloud), (_, plain, _, _)) in enumerate(zip(found, usual, strict=True)):
        assert (hard, cloud, result["side"]) == (False, None, "edge")
        assert edge["turns"][0]["token_ids"] == plain["turns"][0]["token_ids"]
        tokens, seconds = plain["usage"]["prompt_tokens"], result["prefill"]["seconds"]
        assert result["usage"]["prompt_tokens"] == 2 * tokens == table.query("edge_prompt")[place]
        assert result["usage"]["completion_tokens"] == plain["usage"]["completion_tokens"]
        assert result["cost"] == pytest.approx(plain["cost"] + 3e-6 * tokens)
        assert table.query("edge_cost")[place] == result["cost"]
        assert table.query("latency")[place] == pytest.approx(seconds + result["perf"]["latency"])
        assert table.turn("busy")[place] == pytest.approx(seconds + result["perf"]["latency"], abs=2e-6)
        assert result["routing"]["seconds"] > seconds > 0
        assert "edge_answer" not in result
        assert side_answer(result) is not None
    scores = [result["routing"]["score"] for _, result, _, _ in found]
    assert len(set(scores)) == len(scores)


def test_a_run_killed_before_the_answer_asks_that_one_again(
    job: Path, tiny_model: Path, folder: Path, asked: list[str], new_run: Any
) -> None:
    first = run(tiny_model, probe(folder, 1.0))
    journals.change(job, "DELETE FROM answers WHERE id = (SELECT max(id) FROM answers)")
    asked.clear()
    new_run()
    second = run(tiny_model, probe(folder, 1.0))
    assert asked == ["answer"]
    assert [row[1]["completion"] for row in second] == [row[1]["completion"] for row in first]
    assert [row[1]["routing"]["score"] for row in second] == [row[1]["routing"]["score"] for row in first]
