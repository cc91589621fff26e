"""The main job with small models and all routers, and its replay."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.harness import ALGORITHMS, EXAMPLE, TRAINED, Workplace, questions, untimed

BACKENDS = ("autoregressive", "PromptLookup")


@pytest.mark.slow
def test_all_routers_then_replayed_and_nothing_asked_twice(workplace: Workplace, models: tuple[Path, Path]) -> None:
    shutil.copy(EXAMPLE / "benchmarkingjob.yaml", workplace.example)
    for part in ("router", "cascade"):
        shutil.copytree(EXAMPLE / "models" / part, workplace.example / "models" / part)
    for side, model in zip(("edge", "cloud"), models, strict=True):
        workplace.settings(side, model=str(model), max_tokens=10)
    workplace.data(questions(7, 1))
    outcome = workplace.ianvs()
    assert outcome.code == 0, outcome.output
    first, answers = workplace.leaderboard(), workplace.journal()
    assert first.keys() == {(router, backend) for router in (*ALGORITHMS, *TRAINED) for backend in BACKENDS}
    assert {row["Lossless"] for row in first.values()} == {"100.0"}
    assert {row["Speedup"] for (router, backend), row in first.items() if backend == "autoregressive"} == {"1.0"}
    # cloud_only.yaml has another draft length, so its answers are not reused.
    assert len(answers) == len({entry["key"] for entry in answers}) == 2 * 2 * 9 + 3 * 9
    assert workplace.ianvs().code == 0
    assert workplace.journal() == answers
    again = workplace.leaderboard()
    assert untimed(again) == untimed(first)
    assert {row["Throughput"] for row in again.values()} == {row["Throughput"] for row in first.values()}
