"""Feedback on answers reaches the router that learns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ianvs_specdec.routing.learned import classifier as kinds
from ianvs_specdec.routing.learned.folder import TrainedRouter
from ianvs_specdec.routing.learned.logistic import Calibration
from ianvs_specdec.routing.routers.budget import BudgetRouter
from ianvs_specdec.routing.routers.lifelong import LifelongRouter
from tests.routing.routers.lifelong_stream import Lengths

from .conftest import Opens, Says, side

KEY = "k-1"


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The folder of a trained router."""
    monkeypatch.setitem(kinds.CLASSIFIERS, "lengths", f"{Lengths.__module__}:Lengths")
    monkeypatch.delenv("RESULT_SAVED_URL", raising=False)
    TrainedRouter("lengths", Lengths(), Calibration(), 0.5, np.zeros(1, np.uint64)).save(tmp_path / "base")
    return str(tmp_path / "base")


def test_feedback_is_learned_and_saved(gate: Opens, path: str, tmp_path: Path) -> None:
    saved = tmp_path / "learned"
    inner = LifelongRouter(path, explore=0.0, save_to=str(saved), save_every=10)
    opened = gate(side("small", Says("a")), side("large", Says("b")), BudgetRouter(inner, cloud_share=1.0), key=KEY)
    headers = {"Authorization": f"Bearer {KEY}"}

    def ask(text: str) -> Any:
        body = {"model": "router", "messages": [{"role": "user", "content": text}]}
        return opened.post("/v1/chat/completions", body, **headers)[2]

    easy, long = "Which of the rivers number {} is it?", "Which of the longest rivers in the world is number {}? It is"
    assert ask(easy.format(0))["routing"]["side"] == "edge"
    given = [ask(text.format(index))["id"] for text in (easy, long) for index in range(20)]
    for index, identifier in enumerate(given):
        feedback = {"id": identifier, "score": float(index >= 20)}
        assert opened.post("/feedback", feedback, **headers)[::2] == (200, feedback)
    assert inner.feedback_count == 40
    assert ask(easy.format(100))["routing"]["side"] == "cloud"
    assert (saved / "router.json").is_file()
    assert "rivers" not in "".join(file.read_text("latin-1") for file in saved.rglob("*") if file.is_file())
    # Once for each answer, of those that were given, by those who have the key.
    for bad, status in (
        ({"id": given[0], "score": 1}, 404),
        ({"id": "chatcmpl-0", "score": 1}, 404),
        ({"id": given[0], "score": 2}, 400),
        ({"score": 1}, 400),
        ([], 400),
    ):
        assert opened.post("/feedback", bad, **headers)[0] == status, bad
    assert opened.post("/feedback", {"id": given[0], "score": 1})[0] == 401


def test_feedback_without_disk_space(
    gate: Opens, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    router = LifelongRouter(path, explore=0.0, save_to=str(tmp_path / "learned"), save_every=1)
    opened = gate(side("small", Says("a")), side("large", Says("b")), router)
    given = opened.chat("Which one?")[2]["id"]

    def full(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(TrainedRouter, "save", full)
    assert opened.post("/feedback", {"id": given, "score": 1})[0] == 200
    assert router.feedback_count == 1
    assert "cannot be saved" in caplog.text


def test_the_last_answers_take_feedback(gate: Opens, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ianvs_specdec.gateway.gateway.MAX_FEEDBACK", 2)
    opened = gate(side("small", Says("a")), side("large", Says("b")), LifelongRouter(path, explore=0.0))
    given = [opened.chat("Which one?")[2]["id"] for _ in range(3)]
    assert [opened.post("/feedback", {"id": name, "score": 1})[0] for name in given] == [404, 200, 200]


def test_feedback_for_other_routers(gate: Opens) -> None:
    opened = gate(side("small", Says("a")), side("large", Says("b")))
    status, _, body = opened.post("/feedback", {"id": "chatcmpl-0", "score": 1})
    assert (status, body["error"]["message"]) == (409, "Words does not learn from feedback; LifelongRouter does")
