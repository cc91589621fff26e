"""Predicted outputs and tasks on their way from a row to the decoder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.plugin.models import EdgeModel
from ianvs_specdec.records.configuration import Configuration

TURNS = ["ab ab ab", "and again"]
EXPECTED = "forty characters that are expected back."


def ask(model: Path, backend: str, **fields: Any) -> list[dict[str, Any]]:
    edge = EdgeModel(model=str(model), backend=backend, dtype="float32", max_tokens=12)
    turns: list[dict[str, Any]] = edge.predict({"query": {"turns": TURNS, "scorer": "none", **fields}})["turns"]
    edge.cleanup()
    return turns


def drafted(turn: dict[str, Any]) -> int:
    first: int = turn["trace"]["steps"][0][0]
    return first


@pytest.mark.slow
def test_a_prediction_reaches_its_drafter_and_changes_no_token(job: Path, tiny_model: Path) -> None:
    plain = ask(tiny_model, "PredictedOutput")
    predicted = ask(tiny_model, "PredictedOutput", prediction=["", EXPECTED])
    assert [drafted(turn) for turn in plain] == [0, 0]
    assert [drafted(turn) for turn in predicted] == [0, 10]
    assert [turn["token_ids"] for turn in predicted] == [turn["token_ids"] for turn in plain]


@pytest.mark.slow
def test_a_prediction_is_part_of_the_key(job: Path, tiny_model: Path, new_run: Callable[..., None]) -> None:
    configuration = Configuration("m", {})
    messages = [{"role": "user", "content": "hello"}]
    assert configuration.key(messages) == "c7ba2d562b753866d3c66194722dd26cd66057e8610f426d44efb39bff3fa3dd"
    plain = ask(tiny_model, "PredictedOutput")
    predicted = ask(tiny_model, "PredictedOutput", prediction=["", EXPECTED])
    assert (predicted[0]["key"], predicted[0]["cached"]) == (plain[0]["key"], True)
    assert (predicted[1]["key"] == plain[1]["key"], predicted[1]["cached"]) == (False, False)
    new_run()
    assert [turn["replayed"] for turn in ask(tiny_model, "PredictedOutput", prediction=["", EXPECTED])] == [True, True]


@pytest.mark.slow
def test_the_baseline_of_a_predicted_answer_has_the_same_rows(job: Path, tiny_model: Path) -> None:
    ask(tiny_model, "autoregressive", prediction=["", EXPECTED])
    predicted = ask(tiny_model, "PredictedOutput", prediction=["", EXPECTED])
    assert [turn["baseline"]["identical"] for turn in predicted] == [True, True]
