"""``specdec route train``: trained routers, held-out queries, errors."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from ianvs_specdec.commands.cli import main
from ianvs_specdec.routing.learned.folder import FILE, TrainedRouter
from ianvs_specdec.routing.routers import build_router


def write(path: Path, count: int = 200, *, seed: int = 0, correct: str | None = None) -> Path:
    """Questions about rivers are those that the edge gets wrong, mostly; the cloud knows all."""
    generator = np.random.default_rng(seed)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["query", "edge_correct", "cloud_correct", "group"])
        for index in range(count):
            hard = generator.random() < 0.5
            right = generator.random() < (0.1 if hard else 0.95)
            text = f"How {'long is the river' if hard else 'hard is the stone'} number {seed}-{index}?"
            writer.writerow([text, correct or right, "true", f"g{index % 8}"])
    return path


@pytest.fixture
def outcomes(tmp_path: Path) -> Path:
    return write(tmp_path / "outcomes.csv")


def train(*arguments: object) -> int:
    return main(["route", "train", *map(str, arguments)])


def message(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    capsys.readouterr()
    try:
        code = train(*arguments)
    except SystemExit as end:
        code = int(str(end.code))
    assert code == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error
    return error


def test_a_trained_router_decides(outcomes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "router"
    assert train("--outcomes", outcomes, "--out", out, "--kind", "knn", "--cloud-share", 0.5, "--folds", 3) == 0
    told = capsys.readouterr().out
    assert "50 queries held out" in told
    assert "APGR" in told
    router = build_router({"name": "LearnedRouter", "path": str(out)})
    assert router({"query": "How long is the river?"})
    assert not router({"query": "How hard is the stone?"})

    report = json.loads((out / FILE).read_text())["report"]
    assert report["trained_on"]["queries"] == 150
    assert {"auroc", "accuracy", "recall", "f1", "ece"} <= report["metrics"].keys()
    assert report["metrics"]["apgr"]["low"] > 0.6
    assert len(report["score_quantiles"]) == 101


def test_held_out_queries_are_not_trained_on(
    outcomes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write(tmp_path / "other.csv", 40, seed=1)
    with other.open("a") as file:
        file.write(outcomes.read_text().splitlines()[1] + "\n")
    assert train("--outcomes", outcomes, "--test", other, "--out", tmp_path / "a", "--kind", "knn", "--folds", 2) == 0
    assert "1 of 41 queries are trained on, and left out here" in capsys.readouterr().out
    assert len(TrainedRouter.load(tmp_path / "a").seen) == 200

    groups = ("--by", "group", "--kind", "knn", "--folds", 2)
    assert train("--outcomes", outcomes, "--out", tmp_path / "b", *groups) == 0
    assert "50 queries held out" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--split-seed", "-1"], "--split-seed"),
        (["--held-out", "0"], "--held-out must be between 0 and 1"),
        (["--cloud-share", "nan"], "--cloud-share must be from 0 to 1"),
        (["--folds", "0"], "--folds must be from 1"),
        (["--kind", "lifelong"], "invalid choice"),
        (["--set", "neighbors=3"], "unknown option of the router"),
        (["--kind", "encoder", "--set", "learning_rate=3e0"], "learning_rate must be a number above 0"),
        (["--label", "soft"], "specdec route label --samples"),
    ],
)
def test_wrong_arguments(
    outcomes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    assert told in message(capsys, "--outcomes", outcomes, "--out", tmp_path / "router", *arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["outcomes.csv"]


def test_constant_or_few_outcomes_are_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alike = write(tmp_path / "alike.csv", correct="true")
    assert "nothing to learn" in message(capsys, "--outcomes", alike, "--out", tmp_path / "router")
    few = write(tmp_path / "few.csv", 12)
    assert "too few" in message(capsys, "--outcomes", few, "--out", tmp_path / "router")
    assert not (tmp_path / "router").exists()
