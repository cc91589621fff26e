"""A trained router, rows and answers for the tests of LifelongRouter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from ianvs_specdec.common.types import Query
from ianvs_specdec.plugin import observers
from ianvs_specdec.routing.learned.classifier import Classifier
from ianvs_specdec.routing.outcomes.recorded import Floats
from ianvs_specdec.routing.routers.lifelong import FOLDER, LOG, LifelongRouter


class Lengths(Classifier):
    """A kind of classifier for tests: longer questions are harder."""

    @classmethod
    def fit(cls, queries: Any, targets: Floats, *, seed: int = 0, **options: Any) -> Lengths:
        return cls()

    def score(self, queries: Any) -> Floats:
        return np.array([min(len(query.turns[0]) / 100, 0.99) for query in queries])

    def save(self, folder: Path) -> None:
        (folder / "lengths.txt").write_text("", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Lengths:
        return cls()


def row(index: int, group: str = "", word: str = "rivers") -> dict[str, Any]:
    text = f"Which of the {word} number {index} is it?"
    return {"query": {"turns": [text], "id": f"q{index}", "group": group, "scorer": "choice"}, "gold": "A"}


def query(data: dict[str, Any]) -> Query:
    return Query(tuple(data["query"]["turns"]), data["query"]["id"], data["query"]["group"], "choice")


def give(side: str, data: dict[str, Any], right: bool) -> None:
    """A model answers."""
    observers.ended(side, data, {"turns": [{"completion": "A" if right else "B"}]})


def log_of(tmp_path: Path) -> list[dict[str, Any]]:
    (found,) = (tmp_path / "job" / FOLDER).glob(f"*/{LOG}")
    return [json.loads(line) for line in found.read_text(encoding="utf-8").splitlines()]


def stream(router: LifelongRouter, rows: list[dict[str, Any]]) -> list[tuple[float, bool]]:
    """Route and answer each row. The edge fails at minerals, the cloud never."""
    made = []
    for data in rows:
        hard = router(data)
        made.append((data["routing"]["score"], hard))
        give("cloud" if hard else "edge", data, hard or "minerals" not in data["query"]["turns"][0])
    return made


MIXED = [row(index, word=("rivers", "minerals")[index % 2]) for index in range(120)]
