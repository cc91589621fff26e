"""Token probabilities and samples: replay, counts, and failures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ianvs_specdec.benchmarks.scorers import prediction
from ianvs_specdec.common.errors import AnswerError, UserError
from ianvs_specdec.common.types import Completion, Sampling
from ianvs_specdec.plugin.models import CloudModel, EdgeModel
from ianvs_specdec.report.metrics.columns import MEANS
from ianvs_specdec.report.metrics.table import Table
from tests.support import journals
from tests.support.edge import TWO_TURNS, Start, edge

ROW = {**TWO_TURNS, "query": {**TWO_TURNS["query"], "scorer": "text"}}


def confidences(response: Any) -> list[Any]:
    return [turn["trace"].get("confidence") for turn in response["turns"]]


def test_answers_without_probabilities_are_generated_again(job: Path, tiny_model: Path, new_run: Start) -> None:
    plain = edge(tiny_model).predict(ROW)
    new_run()
    asked = edge(tiny_model, logprobs=True).predict(ROW)
    assert not asked["replayed"]
    assert all(
        len(triples) == len(turn["token_ids"]) for triples, turn in zip(confidences(asked), asked["turns"], strict=True)
    )
    assert [turn["token_ids"] for turn in asked["turns"]] == [turn["token_ids"] for turn in plain["turns"]]
    new_run()
    again = edge(tiny_model, logprobs=True).predict(ROW)
    assert again["replayed"]
    assert confidences(again) == confidences(asked)
    assert edge(tiny_model).predict(ROW)["replayed"], "answers of before probabilities were known still serve"
    assert json.loads(json.dumps(again))["completion"] == plain["completion"]


@pytest.mark.parametrize("first", [{}, {"logprobs": True}])
def test_the_baseline_is_found_with_and_without_probabilities(
    job: Path, tiny_model: Path, first: dict[str, Any]
) -> None:
    edge(tiny_model, **first).predict(ROW)
    drafted = edge(tiny_model, backend="PromptLookup", logprobs=True).predict(ROW)
    for turn in drafted["turns"]:
        assert turn["baseline"]["identical"]
        assert turn["baseline"]["latency"] > 0
    unasked = edge(tiny_model, backend="PromptLookup").predict(ROW)
    assert [turn["baseline"] is None for turn in unasked["turns"]] == [bool(first)] * 2
    own = edge(tiny_model, logprobs=True).predict(ROW)["turns"][0]
    assert own["baseline"]["latency"] is not None


def test_samples_are_separate_answers_and_count(job: Path, tiny_model: Path, new_run: Start) -> None:
    priced = {"price_prompt": 10.0, "price_completion": 20.0}
    alone = edge(tiny_model, **priced).predict(ROW)
    model = edge(tiny_model, samples=4, samples_temperature=2.0, **priced)
    response = model.predict(ROW)
    assert response["completion"] == alone["completion"]
    samples = response["samples"]
    assert len(samples) == 3
    assert len({sample["completion"] for sample in samples}) == 3
    keys = [turn["key"] for answer in (response, *samples) for turn in answer["turns"]]
    assert len(set(keys)) == 4 * 2
    every = [turn for answer in (response, *samples) for turn in answer["turns"]]
    for kind in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert response["usage"][kind] == sum(turn["usage"][kind] for turn in every)
    assert response["perf"]["latency"] == pytest.approx(sum(turn["trace"]["chunks"][-1][0] for turn in every))
    assert response["perf"]["time_to_first_token"] == response["turns"][0]["trace"]["chunks"][0][0]
    cost = 10.0 * response["usage"]["prompt_tokens"] + 20.0 * response["usage"]["completion_tokens"]
    assert response["cost"] == pytest.approx(cost / 1e6)
    assert samples[0]["prediction"] == prediction("text", [turn["completion"] for turn in samples[0]["turns"]])
    new_run()
    again = edge(tiny_model, samples=4, samples_temperature=2.0).predict(ROW)
    assert again["replayed"]
    assert [s["completion"] for s in again["samples"]] == [s["completion"] for s in samples]


def test_the_second_turn_of_a_sample_follows_its_first(job: Path, tiny_model: Path) -> None:
    response = edge(tiny_model, samples=3, samples_temperature=3.0).predict(ROW)
    for answer in (response, *response["samples"]):
        first, second = answer["turns"]
        chat = f"<user>ab ab ab<assistant>{first['completion']}<user>and again<assistant>"
        assert second["usage"]["prompt_tokens"] == len(chat.encode())


def test_a_failed_sample_does_not_affect_the_answer(
    job: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = edge(tiny_model, samples=3, max_failures=1)
    generate = type(model.settings.llm("autoregressive")).generate

    def fail(self: Any, messages: Any, sampling: Sampling, *args: Any, **kwargs: Any) -> Completion:
        if sampling.seed == 1_000_003 and sampling.max_tokens == 12:
            raise AnswerError("the server was gone", [(0.5, "gone")])
        return generate(self, messages, sampling, *args, **kwargs)

    monkeypatch.setattr("ianvs_specdec.backends.specdec.EngineLLM.generate", fail)
    response = model.predict(ROW)
    assert "error" not in response
    assert [sample.get("error") for sample in response["samples"]] == ["the server was gone", None]
    assert '"failures"' in journals.text(job)
    with pytest.raises(UserError, match="max_failures"):
        model.predict({**ROW, "query": "another question"})


def test_a_back_end_without_sampling_is_an_early_error(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(self: Any, sampling: Sampling) -> None:
        if not sampling.greedy:
            raise UserError("this back end does not sample", key="temperature")

    monkeypatch.setattr("ianvs_specdec.backends.specdec.EngineLLM.check", check)
    EdgeModel.check_hyperparameters({"model": str(tiny_model)})
    with pytest.raises(UserError, match="does not sample"):
        EdgeModel.check_hyperparameters({"model": str(tiny_model), "samples": 2})


def test_samples_are_for_the_edge(tiny_model: Path) -> None:
    CloudModel.check_hyperparameters({"model": str(tiny_model), "logprobs": True})
    with pytest.raises(UserError, match="samples is for the edge model") as error:
        CloudModel.check_hyperparameters({"model": str(tiny_model), "samples": 2})
    assert error.value.key == "samples"


def test_all_columns_include_the_work_of_a_cascade(job: Path, tiny_model: Path) -> None:
    """The edge's answer and its samples, by the journal's own times."""
    first = edge(tiny_model, samples=3, price_completion=5.0).predict(ROW)
    CloudModel(model=str(tiny_model), backend="autoregressive", dtype="float32", max_tokens=12).inference(ROW)
    cloud = CloudModel(model=str(tiny_model), backend="PromptLookup", dtype="float32", max_tokens=12)
    second = cloud.inference(ROW)

    def seconds(*answers: Any) -> float:
        return sum(turn["trace"]["chunks"][-1][0] for answer in answers for turn in answer["turns"])

    spent = seconds(first, *first["samples"])
    stays = Table(["x"], [[False, first, first, None]])
    assert stays.query("latency")[0] == pytest.approx(spent)
    assert stays.turn("ttft")[0] == pytest.approx(
        seconds(*first["samples"]) + first["turns"][0]["trace"]["chunks"][0][0]
    )
    # By the clock, which has microseconds.
    assert stays.query("busy")[0] == pytest.approx(spent, abs=1e-4)
    goes = Table(["x"], [[True, second, first, second]])
    assert goes.query("latency")[0] == pytest.approx(spent + seconds(second))
    assert goes.turn("ttft")[0] == pytest.approx(spent + second["turns"][0]["trace"]["chunks"][0][0])
    assert goes.query("busy")[0] == pytest.approx(spent + seconds(second), abs=1e-4)
    assert goes.query("base_busy")[0] > spent, "the edge's own work has itself for a baseline"
    for table in (stays, goes):
        assert MEANS["Edge Cost"](table)[0] == pytest.approx(1000 * 5e-6 * first["usage"]["completion_tokens"])
        assert table.query("edge_completion")[0] == first["usage"]["completion_tokens"]
        assert table.query("edge_prompt")[0] == first["usage"]["prompt_tokens"]
    assert MEANS["Cloud Cost"](stays)[0] == 0.0
    assert np.isnan(MEANS["Cloud Cost"](goes)[0]), "the cloud has no price here"
    assert MEANS["Edge Cost"](Table(["x"], [[True, second, None, second]]))[0] == 0.0


def test_edge_answers_of_two_machines_have_no_cascade_times(job: Path, tiny_model: Path) -> None:
    """Queries that all went to the cloud: the edge's work is in their times, so it is to be of one machine, too."""
    asked = edge(tiny_model).predict(ROW)
    answer = CloudModel(model=str(tiny_model), backend="autoregressive", dtype="float32", max_tokens=12).inference(ROW)

    def timed(*hardware: str, replayed: bool) -> bool:
        rows = []
        for machine in hardware:
            turns = [{**turn, "hardware": machine, "replayed": replayed} for turn in asked["turns"]]
            rows.append([True, answer, {**asked, "turns": turns}, answer])
        return bool(Table(["x"] * len(rows), rows).query("latency")[0] > 0)

    assert timed("one", "one", replayed=True)
    assert timed("one", "two", replayed=False)
    assert not timed("one", "two", replayed=True)
