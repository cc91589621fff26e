"""Observers: the models tell what they are asked and what came of it, to those that are still there."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from typing import Any

import pytest

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.plugin import observers
from ianvs_specdec.plugin.models import CloudModel, EdgeModel
from ianvs_specdec.records.response import Response


class Listener:
    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []
        observers.subscribe(self)

    def began(self, side: str, data: Any) -> None:
        self.told.append(("began", side, data))

    def ended(self, side: str, data: Any, response: Mapping[str, Any] | None) -> None:
        self.told.append(("ended", side, data, response))


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> tuple[EdgeModel, CloudModel]:
    monkeypatch.setenv("BACKEND_TYPE", "")
    monkeypatch.setenv("model_path", "")

    def answer(model: Any, data: Any, repeat: int, early: Any) -> Response:
        if data == "unanswerable":
            raise UserError("no answer")
        return Response({"side": model.side})

    for kind in (EdgeModel, CloudModel):
        monkeypatch.setattr(kind, "_answer", answer)
    return EdgeModel(model="any", backend="api"), CloudModel(model="any", backend="api")


def test_both_models_tell_what_they_are_asked_and_what_came_of_it(models: tuple[EdgeModel, CloudModel]) -> None:
    listener, (edge, cloud) = Listener(), models
    row = {"query": "What?"}
    answers = edge.predict(row), cloud.inference(row)
    assert listener.told == [
        ("began", "edge", row),
        ("ended", "edge", row, answers[0]),
        ("began", "cloud", row),
        ("ended", "cloud", row, answers[1]),
    ]
    assert listener.told[0][2] is row


def test_the_end_is_told_where_there_is_no_answer_too(models: tuple[EdgeModel, CloudModel]) -> None:
    listener = Listener()
    with pytest.raises(UserError, match="no answer"):
        models[0].predict("unanswerable")
    assert listener.told == [("began", "edge", "unanswerable"), ("ended", "edge", "unanswerable", None)]


def test_observers_that_are_equal_are_all_told(models: tuple[EdgeModel, CloudModel]) -> None:
    class Equal(Listener):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = None  # type: ignore[assignment]

    first, second = Equal(), Equal()
    models[0].predict("What?")
    assert len(first.told) == len(second.told) == 2


def test_who_is_gone_is_not_told(models: tuple[EdgeModel, CloudModel]) -> None:
    listener = Listener()
    told = listener.told
    del listener
    gc.collect()
    models[0].predict("What?")
    assert not told
