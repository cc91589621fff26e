"""Fixtures of the tests that run the whole chain: the command ``ianvs``, the plugin, the example folder."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from plugin.conftest import build_model

from .harness import EXAMPLE, CountingAPI, Workplace, serving


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


@pytest.fixture(scope="session")
def shared() -> Path:
    """Public data and a reference model, which are not part of the project."""
    folder = Path(os.environ.get("SPECDEC_SHARED") or EXAMPLE.parents[2] / "shared")
    for part in ("data/mt_bench/question.jsonl", "data/mmlu/mmlu_test.jsonl.gz", "reference/target/config.json"):
        if not (folder / part).is_file():
            pytest.skip(f"needs {part} in {folder}; the environment variable SPECDEC_SHARED names another folder")
    return folder


def questions(knowledge: int, dialogues: int = 0) -> list[dict[str, Any]]:
    """Rows of the embedded sets: questions with one right letter, then dialogues of two turns."""
    rows: list[dict[str, Any]] = []
    for name, count in (("knowledge", knowledge), ("open-ended", dialogues)):
        with (EXAMPLE / "dataset" / name / "test.jsonl").open(encoding="utf-8") as file:
            rows += [json.loads(line) for line, _ in zip(file, range(count), strict=False)]
    return rows
