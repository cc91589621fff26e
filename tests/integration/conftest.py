"""Fixtures of the end-to-end tests: a copy of the example, an API server, small models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.counting_api import CountingAPI, serving
from tests.support.harness import Workplace
from tests.support.models import build_model


@pytest.fixture
def workplace(tmp_path: Path) -> Workplace:
    pytest.importorskip("core.cmd.benchmarking", reason="needs the ianvs command: pip install -e host")
    (tmp_path / "home").mkdir()
    (tmp_path / "work").mkdir()
    return Workplace(tmp_path / "work", tmp_path / "home")


@pytest.fixture
def api() -> Iterator[CountingAPI]:
    with serving() as server:
        yield server


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two small models with random weights, for the edge and the cloud. Their window holds MT-Bench's prompts."""
    folder = tmp_path_factory.mktemp("models")
    edge, cloud = (build_model(folder / name, seed=seed, window=4096) for seed, name in enumerate(("edge", "cloud")))
    return edge, cloud
