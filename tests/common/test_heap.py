"""What is left alone by the garbage collector."""

from __future__ import annotations

import gc
import socket
from pathlib import Path

import pytest

from ianvs_specdec.commands.cli import main
from tests.support.models import build_model


def test_what_a_server_has_loaded_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = pytest.importorskip("ianvs_specdec.serving.server", reason="needs the extra serve")
    frozen = []

    def serve(app: object, engine: object, bound: socket.socket, *rest: object) -> None:
        bound.close()
        frozen.append(gc.get_freeze_count())

    monkeypatch.setattr(server, "serve", serve)
    try:
        assert main(["serve", "--model", str(build_model(tmp_path / "tiny")), "--port", "0"]) == 0
    finally:
        gc.unfreeze()
    assert frozen[0] > 0
