"""Make ``bench`` importable, and provide a small model with prompts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.models import build_model
from tests.support.paths import ROOT


@pytest.fixture(autouse=True)
def bench_is_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


@pytest.fixture
def arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Options with a random model, six prompts of two tasks and the output folder."""
    monkeypatch.setattr("bench.statistics.RESAMPLES", 20)
    build_model(tmp_path / "model")
    rows = [{"prompt": [3 + i, 4, 3 + i, 4][: 2 + i % 3], "category": f"kind {i % 2}"} for i in range(6)]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = ["--model", str(tmp_path / "model"), "--prompts", str(tmp_path / "prompts.jsonl"), "--threads", "1"]
    return [*given, "--dtype", "float32", "--max-new-tokens", "6", "--out", str(tmp_path / "out")]
