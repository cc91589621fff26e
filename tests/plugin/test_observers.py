"""Observers are notified of requests and answers."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from typing import Any

import pytest

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.plugin import observers
from ianvs_specdec.plugin.models import EdgeModel
from ianvs_specdec.records.response import Response


class Listener:
    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        observers.subscribe(self)

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]

    def began(self, side: str, data: Any) -> None:
        self.calls.append((side, data))

    def ended(self, side: str, data: Any, response: Mapping[str, Any] | None) -> None:
        self.calls.append((side, data, response))


def test_observers_are_notified_of_answers_and_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(model: Any, data: Any, repeat: int, early: Any) -> Response:
        if data == "unanswerable":
            raise UserError("no answer")
        return Response({"side": model.side})

    monkeypatch.setattr(EdgeModel, "_answer", answer)
    edge = EdgeModel(model="any", backend="api")
    first, second, third = Listener(), Listener(), Listener()
    gone = third.calls
    del third
    gc.collect()
    response = edge.predict("What?")
    with pytest.raises(UserError, match="no answer"):
        edge.predict("unanswerable")
    expected = [("edge", "What?"), ("edge", "What?", response)]
    expected += [("edge", "unanswerable"), ("edge", "unanswerable", None)]
    assert first.calls == second.calls == expected
    assert gone == []
