"""What both sides made of each query: from responses, from the journal, scored and priced in one way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.common.types import Completion, Query, Sampling, Trace, messages_of
from ianvs_specdec.records.configuration import Configuration
from ianvs_specdec.records.journal import Journal
from ianvs_specdec.workspace.cases import Case, Dataset
from ianvs_specdec.workspace.journal_reader import JournalReader
from ianvs_specdec.workspace.sides import PairedAnswers, SideAnswer, score, side_answer, side_key, stored_answer

QUERY = Query(("first", "second"), id="q", scorer="choice")
PRICES = {"price_prompt": 2.0, "price_cached": 0.5, "price_completion": 10.0}


def response(*texts: str, **more: Any) -> dict[str, Any]:
    return {"turns": [{"completion": text} for text in texts], "query_id": "q", "cost": 0.25, **more}


def case(**cloud: Any) -> Case:
    modules = [
        {"type": "edgemodel", "name": "E", "hyperparameters": {"model": "e"}},
        {"type": "cloudmodel", "name": "C", "hyperparameters": {"model": "c", **cloud}},
    ]
    return Case("job", "algorithm", "1", None, config={"dataset": "d", "modules": modules})


def test_what_failed_or_is_lossy_is_no_answer():
    assert side_answer(response("A", "B")) == SideAnswer(("A", "B"), 0.25)
    assert (
        side_answer(None) is side_answer(response("A", error="gone")) is side_answer(response("A", lossy=True)) is None
    )


def test_an_answer_of_the_journal_has_all_turns_and_the_price_of_cached_tokens(tmp_path: Path):
    journal, said = Journal(tmp_path / "journal.sqlite", "run"), []
    configuration = Configuration("c", {"sampling": {}})
    for text in ("A", "B"):
        messages = messages_of(QUERY, said)
        completion = Completion(text, [1], 1_000_000, 100_000, "stop", Trace(), cached_tokens=400_000)
        journal.put(configuration, messages, completion, side="cloud", hardware={})
        said.append(text)
        found = stored_answer(JournalReader(tmp_path), QUERY, [configuration.id], PRICES)
        expected = SideAnswer(("A", "B"), pytest.approx(2 * (0.6 * 2.0 + 0.4 * 0.5 + 0.1 * 10.0)))
        assert found == (expected if len(said) == 2 else None)


def test_no_judge_is_asked_and_no_program_run_for_a_score():
    assert (score("choice", ["B"], "B"), score("choice", ["A"], "B")) == (100.0, 0.0)
    assert score("judge", ["B"], {}) is score("code", ["B"], {}) is score("choice", [], "B") is None


def test_models_are_told_apart_by_sampling_and_not_by_how_they_decode():
    assert side_key(case(), "cloud") == side_key(case(backend="EagleSpecDec", logprobs=True), "cloud")
    assert side_key(case(), "cloud") == side_key(case(quantization="none"), "cloud")
    assert side_key(case(), "cloud") != side_key(case(temperature=0.5), "cloud")
    assert side_key(case(), "cloud") != side_key(case(quantization="int8"), "cloud"), "other weights, other answers"
    assert side_key(Case("job", "algorithm", "1", None), "edge") == ""


def test_rows_of_another_query_or_without_all_turns_are_passed_over():
    sides, dataset = PairedAnswers(), Dataset([QUERY, QUERY, QUERY], ["A", "A", "A"])
    edge, cloud = response("A", "A", side="edge"), response("B", "B", side="cloud")
    rows = {
        0: (True, cloud, edge, cloud),
        1: (True, {**cloud, "query_id": "other"}, edge, cloud),
        2: (True, cloud, response("A"), cloud),
        7: (True, cloud, edge, cloud),
    }
    sides.add(case(), dataset, rows, {0: 40.0, 2: float("nan")})
    assert sides.both(sides.pair(case())) == {
        0: (SideAnswer(("A", "A"), 0.25), SideAnswer(("B", "B"), 0.25, 40.0)),
    }


def test_the_journal_of_a_lossy_or_quantized_model_does_not_answer_for_the_plain_one(tmp_path: Path):
    journal, sampling = Journal(tmp_path / "journal.sqlite", "run"), Sampling().to_json()
    values = [{"options": {"acceptance": "typical"}}, {"options": {}, "quantization": "int8"}, {"options": {}}]
    configurations = [Configuration("c", {**value, "sampling": sampling}) for value in values]
    for configuration in configurations:
        messages = [{"role": "user", "content": "first"}]
        completion = Completion("A", [1], 1, 1, "stop", Trace())
        journal.put(configuration, messages, completion, side="cloud", hardware={})
    _, int8, plain = configurations
    kept = JournalReader(tmp_path)
    assert kept.configurations({"model": "c"}) == [plain.id]
    assert kept.configurations({"model": "c", "quantization": "int8"}) == [int8.id]
    assert kept.same_outputs(plain.key([{"role": "user", "content": "first"}])) == [plain.id]
