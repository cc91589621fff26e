"""What is left alone by the garbage collector."""

from __future__ import annotations

import gc
import socket
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from ianvs_specdec.commands.cli import main
from ianvs_specdec.common import heap
from tests.support.models import build_model


class Knot:
    """Garbage that only a collection finds."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_what_is_there_is_looked_at_no_more_but_what_comes_is() -> None:
    there = [Knot() for _ in range(100)]
    dropped = weakref.ref(Knot())
    heap.keep()
    assert dropped() is None
    assert gc.get_freeze_count() >= len(there)
    assert not any(one is there[0] for one in gc.get_objects())
    dropped = weakref.ref(Knot())
    gc.collect()
    assert dropped() is None


def test_what_a_server_has_loaded_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = pytest.importorskip("ianvs_specdec.serving.server", reason="needs the extra serve")
    frozen = []

    def serve(app: object, engine: object, bound: socket.socket, *rest: object) -> None:
        bound.close()
        frozen.append(gc.get_freeze_count())

    monkeypatch.setattr(server, "serve", serve)
    assert main(["serve", "--model", str(build_model(tmp_path / "tiny")), "--port", "0"]) == 0
    assert frozen[0] > 0


def test_what_a_verifier_has_loaded_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = pytest.importorskip("ianvs_specdec.serving.verifier.server", reason="needs the extra split")
    frozen = []

    async def run(itself: object, ready: object, grace: float) -> None:
        frozen.append(gc.get_freeze_count())

    monkeypatch.setattr(server.Server, "run", run)
    assert main(["verifier", "--model", str(build_model(tmp_path / "tiny")), "--port", "0"]) == 0
    assert frozen[0] > 0
