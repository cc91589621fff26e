"""Shared fixtures: reference models, a tiny model, a scripted server, and the job folder of a run of Ianvs."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Before torch is imported: there is one test process per core.
os.environ["OMP_NUM_THREADS"] = "1"

import pytest

from ianvs_specdec.records.journal import Journal
from tests.support.models import build_model
from tests.support.paths import SHARED, shared_file
from tests.support.stub_server import StubServer


@pytest.fixture(scope="session", autouse=True)
def imported() -> None:
    """Import torch outside of the timed tests."""
    import torch
    import transformers.models.llama.modeling_llama  # noqa: F401

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of public files and reference models."""
    shared_file("data", "mt_bench", "question.jsonl")
    shared_file("reference", "target", "config.json")
    return SHARED


@pytest.fixture(scope="session")
def reference_model(shared: Path) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(shared / "reference" / "target", dtype=torch.float32)


@pytest.fixture(scope="session")
def mt_bench(shared: Path) -> list[dict[str, Any]]:
    with open(shared / "data" / "mt_bench" / "question.jsonl", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


@pytest.fixture(autouse=True)
def environment_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore the environment variables that an edge model sets for Sedna."""
    for name in ("BACKEND_TYPE", "model_path"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_model(tmp_path_factory.mktemp("model"))


def forget_journals() -> None:
    """Drop open journals, as at the end of a process."""
    Journal._open.clear()


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A job folder, with the environment variables of Ianvs. ``new_run`` simulates a restart."""
    monkeypatch.setenv("RESULT_SAVED_URL", str(tmp_path / "workspace" / "job" / "algorithm"))
    monkeypatch.setenv("IANVS_RUN_ID", "run-1")
    monkeypatch.delenv("IANVS_FRESH", raising=False)
    yield tmp_path / "workspace" / "job"
    forget_journals()


@pytest.fixture
def new_run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Simulate a restart of Ianvs: a new run id, and no open journal."""
    number = 1

    def start(*, fresh: bool = False) -> None:
        nonlocal number
        number += 1
        monkeypatch.setenv("IANVS_RUN_ID", f"run-{number}")
        monkeypatch.setenv("IANVS_FRESH", "1" if fresh else "0")
        forget_journals()

    return start


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[StubServer]:
    monkeypatch.setattr("ianvs_specdec.backends.api.session.FIRST_DELAY", 0.01)
    server = StubServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield server
    server.released.set()
    server.shutdown()
    server.server_close()
