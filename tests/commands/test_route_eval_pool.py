"""``specdec route eval --models``: outcome files with a column for each of several models."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.routing.learned.classifier import CLASSIFIERS
from tests.support.rivers import FILES, KIND, file, lines, outcomes, refused, run, trained, values

HEADER = "query,a_correct,b_correct,c_correct,a_cost,b_cost,c_cost"


@pytest.fixture(autouse=True)
def kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CLASSIFIERS, "rivers", KIND)


def pool_rows(count: int = 60) -> list[str]:
    """Rivers are too hard for the cheap model ``b``, and every second river for ``a``; ``c`` knows nearly all."""
    rows = []
    for i, text in enumerate(row.split(",")[0] for row in lines(count)):
        rows.append(f"{text},{int(i % 3 > 0 or i % 2)},{int(i % 3 > 0)},{int(i % 7 > 0)},0.02,0.01,0.1")
    return rows


def test_models_are_put_into_the_order_of_their_costs(tmp_path: Path, capsys: Any) -> None:
    path = outcomes(tmp_path, pool_rows(), HEADER)
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
    path = outcomes(tmp_path, [",".join(row.split(",")[:4]) for row in pool_rows()], ",".join(HEADER.split(",")[:4]))
    scores = file(tmp_path, "router,row,score\n" + "".join(f"R,{i},{i / 60}\n" for i in range(60)), "scores.csv")
    arguments = ["--outcomes", path, "--models", "a=2", "b=1", "c=10", "--scores", scores]
    found = values(run(*arguments, "--threshold", 0.5, 0.8, out=tmp_path / "a"), "R")
    assert (found["share:b"], found["share:a"], found["share:c"]) == (50.0, 30.0, 20.0)
    assert found["cost"] == pytest.approx(1000 * (0.5 * 1 + 0.3 * 2 + 0.2 * 10))
    even = values(run(*arguments, out=tmp_path / "b"), "R")
    assert [even[f"share:{name}"] for name in "bac"] == pytest.approx([100 / 3] * 3, abs=1e-3)


def expected(rows: int = 60, models: str = "abc") -> str:
    """Router P knows what each model makes of each query."""
    known = {"a": lambda i: i % 3 > 0 or i % 2, "b": lambda i: i % 3 > 0, "c": lambda i: i % 7 > 0}
    told = [f"P,{i},{model},{int(known[model](i))}" for i in range(rows) for model in models]
    return "\n".join(["router,row,model,score", *told]) + "\n"


def test_scores_for_each_model(tmp_path: Path) -> None:
    path = outcomes(tmp_path, pool_rows(), HEADER)
    scores = file(tmp_path, expected(), "scores.csv")
    document = run("--outcomes", path, "--models", "a", "b", "c", "--scores", scores, out=tmp_path / "out")
    assert values(document, "P")["gap_oracle"] == 0.0
    held = run("--outcomes", path, "--models", "a", "b", "c", "--scores", scores, "--held-out", 0.5, out=tmp_path / "b")
    assert (held["queries"], values(held, "P")["gap_oracle"]) == (30, 0.0)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (expected(models="ab"), "P has no score of 60 of 60 queries; the first is the one with id '0'"),
        (expected() + "P,0,d,1\n", "scores.csv:182: no model of the pool is named 'd'; there are b, a, c"),
        (expected() + "P,0,a,1\n", "scores.csv:182: P, a, has a second score for the query with row '0'"),
    ],
)
def test_bad_scores_for_each_model(tmp_path: Path, capsys: Any, text: str, told: str) -> None:
    path, scores = outcomes(tmp_path, pool_rows(), HEADER), file(tmp_path, text, "scores.csv")
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
def test_bad_files(tmp_path: Path, capsys: Any, header: str, row: str, told: str) -> None:
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
def test_bad_arguments(tmp_path: Path, capsys: Any, arguments: tuple[str, ...], told: str) -> None:
    path = outcomes(tmp_path, pool_rows(), HEADER)
    assert told in refused(capsys, "--outcomes", path, *arguments, out=tmp_path / "out")


def test_a_job_has_no_pool(tmp_path: Path, capsys: Any) -> None:
    told = refused(capsys, "--job", tmp_path, "--models", "a", "b", out=tmp_path / "out")
    assert "--models is for --outcomes" in told
