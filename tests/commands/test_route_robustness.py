"""``specdec route eval --robustness``: in the tables, in the files, repeatable, or one message."""

from __future__ import annotations

from pathlib import Path

import pytest

from ianvs_specdec.routing.learned.classifier import CLASSIFIERS
from tests.support.rivers import KIND, file, lines, outcomes, run, trained, values


@pytest.fixture(autouse=True)
def kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CLASSIFIERS, "rivers", KIND)
    # The picture takes longer than all else.
    monkeypatch.setattr("ianvs_specdec.routing.evaluation.plot.to_png", lambda evaluation: b"")


def test_flips_are_in_the_tables_and_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scores = file(tmp_path, "router,row,score\n" + "".join(f"R,{i},{i / 60}\n" for i in range(60)), "scores.csv")
    given = ("--outcomes", outcomes(tmp_path), "--scores", scores, "--router", trained(tmp_path / "r"))
    document = run(*given, "--robustness", out=tmp_path / "out")
    found = values(document, "r")
    # The router looks for "river" in small letters: of the 20 questions about rivers about half come in capitals.
    assert 0 < found["flips:case"] < 100 / 3
    assert found["flips:spaces"] == found["flips:politeness"] == found["change:spaces"] == 0.0
    assert "flips:options" not in found
    assert found["change:case"] == pytest.approx(0.7 * found["flips:case"] / 100, abs=1e-5)
    assert found["flips:all_low"] <= found["flips:all"] <= found["flips:all_high"]
    assert not [name for name in values(document, "R") if name.startswith("flips")]
    told = capsys.readouterr()
    assert "decisions that flip when a question is reworded, %" in told.out
    assert told.err.count("robustness: not known for R") == 1
    assert "flips:case" in (tmp_path / "out" / "metrics.csv").read_text()
    again = run(*given, "--robustness", out=tmp_path / "again")
    kept = [name for name in found if not name.startswith("overhead")]
    assert [values(again, "r")[name] for name in kept] == [found[name] for name in kept]
    other = values(run(*given, "--robustness", "--seed", 1, out=tmp_path / "other"), "r")
    assert other["flips:case"] != found["flips:case"]


def test_in_a_pool_a_flip_is_another_model(tmp_path: Path) -> None:
    rows = [f"{text.split(',')[0]},0,0,1" for text in lines()]
    path = outcomes(tmp_path, rows, "query,a_correct,b_correct,c_correct")
    given = ("--outcomes", path, "--models", "a=1", "b=2", "c=9", "--router", trained(tmp_path / "r"), "--robustness")
    assert values(run(*given, out=tmp_path / "out"), "r")["flips:case"] > 0
    # From the edge's score on all go to the dearest.
    assert values(run(*given, "--threshold", 0.1, 0.2, out=tmp_path / "all"), "r")["flips:case"] == 0
