"""``specdec route eval``: files of scores, pools of models (--models), rewording (--robustness), errors."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.commands.cli import main
from tests.support.rivers import FILES, HEADER, file, lines, outcomes, refused, run, trained, values

pytestmark = pytest.mark.usefixtures("rivers", "no_plot")
POOL = "query,a_correct,b_correct,c_correct,a_cost,b_cost,c_cost"


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


def test_duplicate_ids_are_errors(tmp_path: Path, capsys: Any) -> None:
    path = outcomes(tmp_path, [f"{line},same" for line in lines()], f"{HEADER},id")
    scores = file(tmp_path, "router,query_id,score\nR,same,1\n", "scores.csv")
    told = refused(capsys, "--outcomes", path, "--scores", scores, out=tmp_path / "out")
    assert "two outcomes have the id 'same'" in told


def test_invalid_scores_of_a_router_are_errors(tmp_path: Path, capsys: Any) -> None:
    router = trained(tmp_path / "r", hard=float("nan"))
    told = refused(capsys, "--outcomes", outcomes(tmp_path), "--router", router, out=tmp_path / "out")
    assert "its score of the query with id '0' is nan" in told


def test_out_must_not_be_a_file(tmp_path: Path, capsys: Any) -> None:
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


# Pools of models


def pool_rows(count: int = 60) -> list[str]:
    """Rivers are too hard for the cheap model ``b``, and every second river for ``a``; ``c`` knows nearly all."""
    rows = []
    for i, text in enumerate(row.split(",")[0] for row in lines(count)):
        rows.append(f"{text},{int(i % 3 > 0 or i % 2)},{int(i % 3 > 0)},{int(i % 7 > 0)},0.02,0.01,0.1")
    return rows


def test_models_are_sorted_by_cost(tmp_path: Path, capsys: Any) -> None:
    path = outcomes(tmp_path, pool_rows(), POOL)
    out = tmp_path / "out"
    router = trained(tmp_path / "rivers")
    document = run("--outcomes", path, "--models", "a", "b", "c", "--router", router, "RandomRouter", out=out)
    told = capsys.readouterr()
    assert "from the cheapest to the dearest model: b, a, c; the best alone is c" in told.err
    assert list(document["by_name"]) == [
        "always-b", "always-a", "always-c", "random", "oracle by cost", "rivers", "RandomRouter"
    ]  # fmt: skip
    found = values(document, "rivers")
    # Its scores are 0.9 and 0.2: rivers go to the dearest of three, the rest to the cheapest.
    assert found["share:c"] == pytest.approx(100 / 3, abs=1e-3)
    assert found["share:a"] == 0.0
    assert found["cost"] == pytest.approx(1000 * (0.1 + 2 * 0.01) / 3, abs=1e-3)
    assert found["overhead_p95"] > 0
    assert {"gain_best", "gap_oracle", "pareto_dist_money", "apgr_money"} <= set(found)
    assert "cloud" not in told.out
    names = sorted([*FILES, "curves.png"] if importlib.util.find_spec("matplotlib") else FILES)
    assert sorted(item.name for item in out.iterdir()) == names


def test_prices_and_thresholds(tmp_path: Path) -> None:
    path = outcomes(tmp_path, [",".join(row.split(",")[:4]) for row in pool_rows()], ",".join(POOL.split(",")[:4]))
    scores = file(tmp_path, "router,row,score\n" + "".join(f"R,{i},{i / 60}\n" for i in range(60)), "scores.csv")
    arguments = ["--outcomes", path, "--models", "a=2", "b=1", "c=10", "--scores", scores]
    found = values(run(*arguments, "--threshold", 0.5, 0.8, out=tmp_path / "a"), "R")
    assert (found["share:b"], found["share:a"], found["share:c"]) == (50.0, 30.0, 20.0)
    assert found["cost"] == pytest.approx(1000 * (0.5 * 1 + 0.3 * 2 + 0.2 * 10))
    even = values(run(*arguments, out=tmp_path / "b"), "R")
    assert [even[f"share:{name}"] for name in "bac"] == pytest.approx([100 / 3] * 3, abs=1e-3)


def pool_scores(rows: int = 60, models: str = "abc") -> str:
    """Router P knows what each model makes of each query."""
    known = {"a": lambda i: i % 3 > 0 or i % 2, "b": lambda i: i % 3 > 0, "c": lambda i: i % 7 > 0}
    told = [f"P,{i},{model},{int(known[model](i))}" for i in range(rows) for model in models]
    return "\n".join(["router,row,model,score", *told]) + "\n"


def test_scores_for_each_model(tmp_path: Path) -> None:
    path = outcomes(tmp_path, pool_rows(), POOL)
    scores = file(tmp_path, pool_scores(), "scores.csv")
    document = run("--outcomes", path, "--models", "a", "b", "c", "--scores", scores, out=tmp_path / "out")
    assert values(document, "P")["gap_oracle"] == 0.0
    held = run("--outcomes", path, "--models", "a", "b", "c", "--scores", scores, "--held-out", 0.5, out=tmp_path / "b")
    assert (held["queries"], values(held, "P")["gap_oracle"]) == (30, 0.0)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (pool_scores(models="ab"), "P has no score of 60 of 60 queries; the first is the one with id '0'"),
        (pool_scores() + "P,0,d,1\n", "scores.csv:182: no model of the pool is named 'd'; there are b, a, c"),
        (pool_scores() + "P,0,a,1\n", "scores.csv:182: P, a, has a second score for the query with row '0'"),
    ],
)
def test_bad_scores_for_each_model(tmp_path: Path, capsys: Any, text: str, told: str) -> None:
    path, scores = outcomes(tmp_path, pool_rows(), POOL), file(tmp_path, text, "scores.csv")
    arguments = ["--outcomes", path, "--models", "a", "b", "c", "--scores", scores]
    assert told in refused(capsys, *arguments, out=tmp_path / "out")


@pytest.mark.parametrize(
    ("header", "row", "told"),
    [
        ("query,a_correct,c_correct", "q,1,1", "outcomes.csv:2: there is no b_correct; found: query, a_correct"),
        ("query,a_correct,b_correct,a_cost", "q,1,1,1", "outcomes.csv:2: there is no b_cost; give it for every query"),
        ("query,a_correct,b_correct,a_cost,b_cost", "q,1,1,1,-2", "2: b_cost must be a number from 0, not '-2'"),
        ("query,a_correct,b_correct,a_cost,b_cost", "q,1,2,1,2", "b_correct must be true, false or a number from 0"),
        ("query,a_correct,b_correct,a_cost,b_cost", "q,1,1,2,2", "all models cost the same"),
    ],
)
def test_bad_outcomes_of_a_pool(tmp_path: Path, capsys: Any, header: str, row: str, told: str) -> None:
    path = outcomes(tmp_path, [row], header)
    assert told in refused(capsys, "--outcomes", path, "--models", "a", "b", out=tmp_path / "out")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--models", "a"), "there must be two models or more to choose from, not only 'a'"),
        (("--models", "a", "a=2"), "--models: 'a' is there twice"),
        (("--models", "a=-1", "b"), "the price of an answer must be a number from 0, not 'a=-1'"),
        (("--models", "a", "b", "c", "--threshold", "0.6", "0.5"), "must be 2 increasing numbers"),
        (("--threshold", "0.5", "0.6"), "--threshold must be one number, not 0.5 0.6"),
    ],
)
def test_bad_arguments_of_a_pool(tmp_path: Path, capsys: Any, arguments: tuple[str, ...], told: str) -> None:
    path = outcomes(tmp_path, pool_rows(), POOL)
    assert told in refused(capsys, "--outcomes", path, *arguments, out=tmp_path / "out")


def test_a_job_has_no_pool(tmp_path: Path, capsys: Any) -> None:
    told = refused(capsys, "--job", tmp_path, "--models", "a", "b", out=tmp_path / "out")
    assert "--models is for --outcomes" in told


# Rewording


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


def test_flips_in_a_pool_are_changes_of_the_model(tmp_path: Path) -> None:
    rows = [f"{text.split(',')[0]},0,0,1" for text in lines()]
    path = outcomes(tmp_path, rows, "query,a_correct,b_correct,c_correct")
    given = ("--outcomes", path, "--models", "a=1", "b=2", "c=9", "--router", trained(tmp_path / "r"), "--robustness")
    assert values(run(*given, out=tmp_path / "out"), "r")["flips:case"] > 0
    # From the edge's score on all go to the dearest.
    assert values(run(*given, "--threshold", 0.1, 0.2, out=tmp_path / "all"), "r")["flips:case"] == 0
