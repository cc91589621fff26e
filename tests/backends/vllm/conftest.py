"""The vLLM back end with a stand-in for its worker."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.backends.vllm import backend as vllm_backend
from ianvs_specdec.backends.vllm.backend import VllmLLM
from tests.support.paths import EXAMPLE

MODELS = EXAMPLE / "models"


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., VllmLLM]]:
    """Creates back ends with the stand-in; ``behaviour``: what goes wrong."""
    made: list[VllmLLM] = []

    def start(behaviour: str = "", vllm: str | None = "9.9", cpu: bool = True, **options: Any) -> VllmLLM:
        monkeypatch.setenv("STAND_IN_PROBE", json.dumps({"vllm": vllm, "cpu": cpu}))
        chosen = {**options.pop("engine_args", {}), **({"behaviour": behaviour} if behaviour else {})}
        llm = VllmLLM(str(MODELS / "edge"), vllm_python=sys.executable, engine_args=chosen, **options)
        made.append(llm)
        return llm

    monkeypatch.setattr(vllm_backend, "WORKER", Path(__file__).with_name("vllm_stand_in.py"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setenv("STAND_IN_IDS", "65 66 67 68 69 70 71 72 73")
    yield start
    for llm in made:
        llm.close()
