"""A probe from the command line: recorded, trained, evaluated and at work; what cannot be is one message."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from ianvs_specdec.commands.cli import main
from ianvs_specdec.common.types import Query
from ianvs_specdec.plugin.models import EdgeModel
from ianvs_specdec.routing.learned.folder import FILE
from ianvs_specdec.routing.learned.uncertainty import UncertaintyModel
from ianvs_specdec.routing.outcomes.recorded import Outcomes, save_outcomes
from ianvs_specdec.routing.routers import build_router
from tests.support.rivers import outcomes, run, values

RECIPE = ("--folds", 2, "--set", "layers=[1,2]", "--set", "units=0", "--cloud-share", 0.4)


def edge(model: Path, *more: str) -> list[str]:
    return [part for item in (f"model={model}", "dtype=float32", *more) for part in ("--edge-set", item)]


def train(*arguments: object) -> int:
    return main(["route", "train", "--kind", "probe", *map(str, arguments)])


ROWS = [f"Which {'river' if i % 3 == 0 else 'stone'} {i}?,{int(i % 3 > 0)},1" for i in range(90)]


@pytest.mark.slow
def test_from_outcomes_to_a_router_that_decides(
    job: Path, tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "probe"
    assert train("--outcomes", outcomes(tmp_path, ROWS), "--out", out, *edge(tiny_model), *RECIPE) == 0
    assert "reads the layers 1, 2 of" in capsys.readouterr().out
    report = json.loads((out / FILE).read_text())["report"]
    assert report["metrics"]["auroc"]["value"] > 0.9
    assert str(tmp_path) not in "".join(path.read_text() for path in out.glob("*.json"))

    model = EdgeModel(model=str(tiny_model), dtype="float32", max_tokens=2)
    router = build_router({"name": "LearnedRouter", "path": str(out)})
    try:
        asked = [{"query": f"Which {word} 7?", "gold": "B", "index": 0} for word in ("river", "stone")]
        assert [router(row) for row in asked] == [True, False]
    finally:
        model.cleanup()


@pytest.mark.slow
def test_of_reworded_questions_the_edge_reads_too(tmp_path: Path, tiny_model: Path) -> None:
    file, out = outcomes(tmp_path, ROWS), tmp_path / "probe"
    assert train("--outcomes", file, "--out", out, *edge(tiny_model), *RECIPE) == 0
    given = ["--outcomes", file, "--router", out, "--include-seen", "--sample", 5, *edge(tiny_model)]
    states = ("--states", tmp_path / "probe.states")
    found = values(run(*given, *states, "--robustness", out=tmp_path / "eval"), "probe")
    assert found["change:case"] > 0
    assert list((tmp_path / "probe.states" / "reworded-0").glob("*.npy"))


@pytest.mark.slow
def test_a_cascade_is_calibrated_with_it(
    tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RESULT_SAVED_URL", raising=False)
    out, fresh = tmp_path / "probe", tmp_path / "fresh.jsonl"
    assert train("--outcomes", outcomes(tmp_path, ROWS), "--out", out, *edge(tiny_model), *RECIPE) == 0
    hard = np.arange(24) % 3 == 0
    queries = tuple(Query((f"Which {'river' if one else 'stone'} {i}x?",)) for i, one in enumerate(hard))
    save_outcomes(fresh, Outcomes(queries, 1.0 - hard, np.ones(24)))
    fitted = ("calibrate", "--outcomes", fresh, "--router", out, "--signal", "router", "--folds", 3)
    (tmp_path / "edge.yaml").write_text(f"model: {tiny_model}\ndtype: float32\nmax_tokens: 2\n")
    given = ["--edge", tmp_path / "edge.yaml", "--out", tmp_path / "cascade.json"]
    assert main(["route", *map(str, (*fitted, *given))]) == 0
    assert "router: auroc" in capsys.readouterr().out
    assert UncertaintyModel.load(tmp_path / "cascade.json").slopes["router"] > 0  # type: ignore[index]


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    capsys.readouterr()
    assert main(["route", *map(str, arguments)]) == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error
    return error


def test_what_cannot_be_is_one_message(tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = outcomes(tmp_path), tmp_path / "router"
    given = ("train", "--outcomes", file, "--out", out)
    assert "--edge FILE" in refused(capsys, *given, "--kind", "probe")
    assert "reads the query alone" in refused(capsys, *given, *edge(tiny_model))
    without = edge(tiny_model, "backend=huggingface")
    assert "does not return hidden states" in refused(capsys, *given, "--kind", "probe", *without)
    assert not out.exists()

    evaluated = ("eval", "--outcomes", file, "--out", tmp_path / "eval")
    assert "no --router is a probe" in refused(capsys, *evaluated, "--router", "RandomRouter", *edge(tiny_model))
