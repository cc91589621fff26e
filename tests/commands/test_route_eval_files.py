"""Files that ``specdec route eval`` reads: those of other programs, and those that will not do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.commands.cli import main
from ianvs_specdec.routing.learned.classifier import CLASSIFIERS
from tests.support.rivers import HEADER, KIND, file, lines, outcomes, refused, run, trained, values


@pytest.fixture(autouse=True)
def kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CLASSIFIERS, "rivers", KIND)


def test_scores_by_id_may_come_in_any_order(tmp_path: Path) -> None:
    rows = [f"{line},id-{i}" for i, line in enumerate(lines())]
    path = outcomes(tmp_path, rows, f"{HEADER},id")
    numbers = [i * 17 % 60 for i in range(60)]
    by_id = "".join(f"{i % 5 / 10},id-{i},oracle,x\n" for i in numbers)
    by_row = "".join(f"R,{i},{i % 5 / 10}\n" for i in range(60))
    first = run(
        "--outcomes",
        path,
        "--scores",
        file(tmp_path, f"score,query_id,router,note\n{by_id}", "a.csv"),
        out=tmp_path / "a",
    )
    second = run(
        "--outcomes", path, "--scores", file(tmp_path, f"router,row,score\n{by_row}", "b.csv"), out=tmp_path / "b"
    )
    assert values(first, "oracle (a.csv)") == values(second, "R")
    assert first["by_name"]["oracle (a.csv)"]["threshold"] == 0.5
    other = run("--outcomes", path, "--scores", tmp_path / "b.csv", "--threshold", 0.2, out=tmp_path / "c")
    assert values(other, "R")["share"] == 60.0


def test_scores_outside_0_to_1_have_no_threshold_and_no_calibration(tmp_path: Path, capsys: Any) -> None:
    scores = file(tmp_path, "router,row,score\n" + "".join(f"R,{i},{i - 30}\n" for i in range(60)), "scores.csv")
    found = values(run("--outcomes", outcomes(tmp_path), "--scores", scores, out=tmp_path / "out"), "R")
    assert "apgr" in found
    assert not {"share", "ece", "recall"} & set(found)
    assert "no calibration error" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("router,row,score\n", "there are no scores"),
        ("router,row,value\nR,0,1\n", "the column score is missing; found: router, row, value"),
        ("row,score\n0,1\n", "the column router is missing"),
        ("router,score\nR,1\n", "the column query_id or row is missing"),
        ("router,row,score\nR,0,nan\n", "scores.csv:2: score must be a number, not 'nan'"),
        ("router,row,score\nR,0,1\nR,0,1\n", "scores.csv:3: R has a second score"),
        (
            "router,row,score\nR,60,1\n",
            "scores.csv:2: no outcome has the row '60'; there are 60 (rows are counted from 0)",
        ),
        ("router,query_id,score\nR,x,1\n", "scores.csv:2: no outcome has the query_id 'x'"),
        ("router,row,score\nR,0,1\n", "R has no score of 59 of 60 queries; the first is the one with id '1'"),
        ("router,row,score\n,0,1\n", "scores.csv:2: router is empty"),
    ],
)
def test_bad_scores(tmp_path: Path, capsys: Any, text: str, told: str) -> None:
    scores = file(tmp_path, text, "scores.csv")
    assert told in refused(capsys, "--outcomes", outcomes(tmp_path), "--scores", scores, out=tmp_path / "out")


def test_ids_that_are_there_twice_name_no_query(tmp_path: Path, capsys: Any) -> None:
    path = outcomes(tmp_path, [f"{line},same" for line in lines()], f"{HEADER},id")
    scores = file(tmp_path, "router,query_id,score\nR,same,1\n", "scores.csv")
    told = refused(capsys, "--outcomes", path, "--scores", scores, out=tmp_path / "out")
    assert "two outcomes have the id 'same'" in told


def test_a_routers_bad_score_is_told(tmp_path: Path, capsys: Any) -> None:
    router = trained(tmp_path / "r", hard=float("nan"))
    told = refused(capsys, "--outcomes", outcomes(tmp_path), "--router", router, out=tmp_path / "out")
    assert "its score of the query with id '0' is nan" in told


def test_out_that_is_a_file_is_told_before_the_work(tmp_path: Path, capsys: Any) -> None:
    path = outcomes(tmp_path)
    for out in (path, path / "deeper"):
        assert main(["route", "eval", "--outcomes", "nowhere.csv", "-o", str(out)]) == 2
        assert f"--out {out}: {path} is a file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--router", "nowhere/r"), "router.json"),
        (("--router", "RandomRuter"), "Did you mean 'RandomRouter'"),
        (("--resamples", "5"), "--resamples must be at least"),
        (("--by", "group"), "--held-out"),
        (("--held-out", "1.5"), "--held-out must be"),
        (("--threshold", "0.5"), "--threshold is for --scores"),
        (("--threads", "0"), "--threads must be 1 or more"),
        (("--robustness",), "give one"),
    ],
)
def test_bad_arguments(tmp_path: Path, capsys: Any, arguments: tuple[str, ...], told: str) -> None:
    path, out = outcomes(tmp_path), tmp_path / "out"
    assert main(["route", "eval", "--outcomes", str(path), "-o", str(out), *arguments]) == 2
    assert told in capsys.readouterr().err
    assert not out.exists()
