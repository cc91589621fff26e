"""Fixtures of ``specdec route``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ianvs_specdec.routing.learned.classifier import CLASSIFIERS
from tests.support.api_server import ScriptedAPI, Serve, serving
from tests.support.labelling import Place, letters, question
from tests.support.rivers import KIND


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    monkeypatch.setattr("ianvs_specdec.backends.api.session.FIRST_DELAY", 0.01)
    for name in ("RESULT_SAVED_URL", "IANVS_RUN_ID", "IANVS_FRESH", "IANVS_REPEAT"):
        monkeypatch.delenv(name, raising=False)
    with serving() as start:
        yield start


@pytest.fixture
def place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Place:
    place = Place(tmp_path, capsys)
    place.questions(*map(question, range(4)))
    return place


@pytest.fixture
def api(place: Place, serve: Serve) -> ScriptedAPI:
    """Answers by ``letters``; both models' settings name it."""
    server = serve(lambda prompt, number: letters(server, prompt, number))
    place.settings(server)
    return server


@pytest.fixture
def rivers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The router kind "rivers"."""
    monkeypatch.setitem(CLASSIFIERS, "rivers", KIND)


@pytest.fixture
def no_plot(monkeypatch: pytest.MonkeyPatch) -> None:
    """``specdec route eval`` without the time of its plot."""
    monkeypatch.setattr("ianvs_specdec.routing.evaluation.plot.to_png", lambda evaluation: b"")
