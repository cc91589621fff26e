"""Outcomes of questions about rivers and stones, a router that knows the rivers, and ``specdec route eval``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ianvs_specdec.commands.cli import main
from ianvs_specdec.routing.learned.classifier import Classifier
from ianvs_specdec.routing.learned.folder import TrainedRouter
from ianvs_specdec.routing.learned.logistic import Calibration
from ianvs_specdec.routing.outcomes.recorded import load_outcomes

HEADER = "query,edge_correct,cloud_correct"
KIND = f"{__name__}:Rivers"
FILES = ["comparisons.csv", "curves.csv", "evaluation.json", "metrics.csv"]


class Rivers(Classifier):
    """Knows that questions about rivers are hard."""

    def __init__(self, hard: float) -> None:
        self.hard = hard

    @classmethod
    def fit(cls, queries: Any, targets: Any, *, seed: int = 0, **options: Any) -> Rivers:
        return cls(0.9)

    def score(self, queries: Any) -> Any:
        return np.array([self.hard if "river" in query.turns[0] else 0.2 for query in queries])

    def save(self, folder: Path) -> None:
        (folder / "rivers.json").write_text(json.dumps(self.hard))

    @classmethod
    def load(cls, folder: Path) -> Rivers:
        return cls(json.loads((folder / "rivers.json").read_text()))


def lines(count: int = 60) -> list[str]:
    """The edge is wrong about rivers, and both about every seventh question."""
    return [f"Which {'river' if i % 3 == 0 else 'stone'} {i}?,{int(i % 3 > 0)},{int(i % 7 > 0)}" for i in range(count)]


def file(folder: Path, text: str | bytes, name: str = "outcomes.csv") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def outcomes(folder: Path, rows: Sequence[str] | None = None, header: str = HEADER, name: str = "outcomes.csv") -> Path:
    return file(folder, "\n".join([header, *(lines() if rows is None else rows)]) + "\n", name)


def trained(folder: Path, seen: Path | None = None, *, hard: float = 0.9, label: str = "hybrid") -> Path:
    digests = load_outcomes(seen).digests() if seen else np.empty(0, np.uint64)
    TrainedRouter("rivers", Rivers(hard), Calibration(), 0.5, digests, label).save(folder)
    return folder


def run(*arguments: object, out: Path) -> dict[str, Any]:
    assert main(["route", "eval", *map(str, arguments), "-o", str(out), "--resamples", "100"]) == 0
    document: dict[str, Any] = json.loads((out / "evaluation.json").read_text())
    document["by_name"] = {row["router"]: row for row in document["metrics"]}
    return document


def values(document: dict[str, Any], name: str) -> dict[str, float]:
    row = document["by_name"][name]
    return {key: value for key, value in row.items() if value is not None and key not in ("router", "baseline")}


def refused(capsys: pytest.CaptureFixture[str], *arguments: object, out: Path) -> str:
    """The only line of the output; no file is written."""
    assert main(["route", "eval", *map(str, arguments), "-o", str(out), "--resamples", "100"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert not out.exists()
    return captured.err
