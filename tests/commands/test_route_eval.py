"""``specdec route eval``: tables from recorded outcomes and scores."""

from __future__ import annotations

import csv
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from ianvs_specdec.benchmarks.rows import query_of
from ianvs_specdec.commands.cli import main
from ianvs_specdec.routing.learned.folder import TrainedRouter
from ianvs_specdec.routing.learned.logistic import Calibration
from ianvs_specdec.routing.outcomes.recorded import digests, load_outcomes
from tests.support.paths import shared_file
from tests.support.rivers import FILES, HEADER, Rivers, file, lines, outcomes, refused, run, trained, values
from tests.support.workspace import Bench, choice, usual

pytestmark = pytest.mark.usefixtures("rivers")
NO_PLOT = pytest.mark.usefixtures("no_plot")


def test_everything_is_written_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    router = trained(tmp_path / "rivers")
    document = run("--outcomes", outcomes(tmp_path), "--router", router, "RandomRouter", out=tmp_path / "a" / "out")
    assert list(document["by_name"]) == ["always-edge", "always-cloud", "random", "oracle", "rivers", "RandomRouter"]
    edge, found = values(document, "always-edge"), values(document, "rivers")
    assert edge["quality"] == pytest.approx(200 / 3, abs=1e-3)
    assert found["share"] == pytest.approx(100 / 3, abs=1e-3)
    right = sum(int(row.split(",")[1 if i % 3 else 2]) for i, row in enumerate(lines()))
    assert found["quality"] == pytest.approx(100 * right / 60, abs=1e-3)
    assert found["recall"] == 1.0
    assert found["apgr"] > 0.9
    assert found["ece"] > 0
    assert found["overhead_p95"] >= found["overhead_p50"] > 0
    assert "ece" not in values(document, "RandomRouter")
    names = sorted(path.name for path in (tmp_path / "a" / "out").iterdir())
    told = capsys.readouterr()
    assert "rivers (at 0.5)" in told.out
    assert "rivers to random" in told.out
    if importlib.util.find_spec("matplotlib"):
        assert names == sorted([*FILES, "curves.png"])
        assert (tmp_path / "a" / "out" / "curves.png").read_bytes().startswith(b"\x89PNG")
    else:
        assert names == FILES
        assert "pip install" in told.err


@NO_PLOT
def test_training_queries_are_excluded_for_all_routers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = outcomes(tmp_path)
    knows = trained(tmp_path / "knows", outcomes(tmp_path, lines()[:20], name="seen.csv"))
    fresh = trained(tmp_path / "fresh")
    document = run("--outcomes", path, "--router", fresh, knows, out=tmp_path / "out")
    assert document["queries"] == 40
    assert document["left_out"] == {"seen in training": 20}
    assert capsys.readouterr().err.count("20 queries that a router was trained with are left out") == 1
    expected = run(
        "--outcomes", outcomes(tmp_path, lines()[20:], name="rest.csv"), "--router", fresh, out=tmp_path / "b"
    )
    assert values(document, "fresh")["apgr"] == values(expected, "fresh")["apgr"]
    everything = run("--outcomes", path, "--router", fresh, knows, "--include-seen", out=tmp_path / "c")
    assert everything["queries"] == 60
    other = trained(tmp_path / "other", path)
    capsys.readouterr()
    assert "--include-seen" in refused(capsys, "--outcomes", path, "--router", other, out=tmp_path / "none")


@NO_PLOT
@pytest.mark.parametrize("by", ["row", "group"])
def test_held_out_queries_are_those_of_training(tmp_path: Path, by: str) -> None:
    rows = [f"{line},g{i % 5}" for i, line in enumerate(lines())]
    path = outcomes(tmp_path, rows, f"{HEADER},group")
    scores = file(tmp_path, "router,row,score\n" + "".join(f"R,{i},{i % 13 / 13}\n" for i in range(60)), "scores.csv")
    arguments = ("--held-out", 0.3, "--by", by, "--split-seed", 3)
    document = run("--outcomes", path, *arguments, "--scores", scores, out=tmp_path / "out")
    _, held = load_outcomes(path).split(by, 0.3, 3)
    assert document["queries"] == len(held) == 60 - document["left_out"]["not held out"]
    assert values(document, "always-edge")["quality"] == pytest.approx(100 * held.edge.mean(), abs=1e-3)
    numbered = [int(query.id) % 13 / 13 for query in held.queries]
    chosen = file(tmp_path, "router,row,score\n" + "".join(f"R,{i},{s}\n" for i, s in enumerate(numbered)), "s.csv")
    rest = outcomes(tmp_path, [rows[int(query.id)] for query in held.queries], f"{HEADER},group", "held.csv")
    alone = run("--outcomes", rest, "--scores", chosen, out=tmp_path / "b")
    assert values(document, "R") == values(alone, "R")


@pytest.mark.parametrize("case", ["pool", "no threshold"])
def test_plots_of_pools_and_of_unbounded_scores(tmp_path: Path, case: str) -> None:
    pytest.importorskip("matplotlib")
    if case == "pool":
        path = outcomes(tmp_path, [f"{line},1" for line in lines()], "query,a_correct,b_correct,c_correct")
        prices = ("--models", "a=1", "b=2", "c=9")
        run("--outcomes", path, *prices, "--router", trained(tmp_path / "r"), "RandomRouter", out=tmp_path / "out")
    else:
        scores = file(tmp_path, "router,row,score\n" + "".join(f"R,{i},{i - 30}\n" for i in range(60)), "scores.csv")
        document = run("--outcomes", outcomes(tmp_path), "--scores", scores, out=tmp_path / "out")
        assert "share" not in values(document, "R")
    assert (tmp_path / "out" / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_equal_outcomes_leave_cells_empty_with_a_note(tmp_path: Path, capsys: Any) -> None:
    rows = [f"Which river {i}?,{i % 2},{i % 2}" for i in range(30)]
    router = trained(tmp_path / "r")
    document = run("--outcomes", outcomes(tmp_path, rows), "--router", router, out=tmp_path / "out")
    told = capsys.readouterr().err
    assert told.count("AUROC, recall and F1 are not defined") == told.count("PGR, APGR and CPT are not defined") == 1
    assert not {"apgr", "auroc", "recall", "f1", "pgr", "cpt50"} & set(values(document, "r"))
    written = (tmp_path / "out" / "metrics.csv").read_text().splitlines()
    (row,) = [row for row in csv.DictReader(written) if row["router"] == "r"]
    assert row["apgr"] == row["auroc_low"] == ""
    assert row["quality"] == "50.0"
    if importlib.util.find_spec("matplotlib"):
        assert (tmp_path / "out" / "curves.png").read_bytes().startswith(b"\x89PNG")


@NO_PLOT
def test_outcomes_and_routers_of_a_job(tmp_path: Path, monkeypatch: Any) -> None:
    bench = usual(Bench(tmp_path / "bench", [choice(number) for number in range(8)]))
    monkeypatch.chdir(bench.root)
    document = run("--job", bench.folder, out=tmp_path / "out")
    assert document["queries"] == 8
    assert values(document, "always-edge")["quality"] == 50.0
    assert values(document, "always-cloud")["quality"] == 87.5
    found = values(document, "OddRouter")
    assert (found["share"], found["quality"], found["recall"]) == (50.0, 87.5, 1.0)
    assert found["overhead_p50"] == pytest.approx(0.01)
    assert [name for name in document["by_name"] if "Only" in name] == []


@NO_PLOT
@pytest.mark.parametrize(
    "inside", [{"name": "LearnedRouter", "path": "router"}, {"name": "CascadeRouter", "routers": {"text": "router"}}]
)
def test_training_queries_of_a_jobs_router_are_excluded(tmp_path: Path, monkeypatch: Any, inside: Any) -> None:
    bench = usual(Bench(tmp_path / "bench", [choice(number) for number in range(8)]))
    seen = digests([query_of(row["question"], row["answer"], index) for index, row in enumerate(bench.rows[:2])])
    TrainedRouter("rivers", Rivers(0.9), Calibration(), 0.5, seen).save(bench.root / "router")
    config = next((bench.folder / "oddrouter").glob("*/config.yaml"))
    told = yaml.safe_load(config.read_text(encoding="utf-8"))
    told["modules"][2]["hyperparameters"] = {"cloud_share": 0.5, "router": inside}
    config.write_text(yaml.safe_dump(told), encoding="utf-8")
    monkeypatch.chdir(bench.root)
    assert run("--job", bench.folder, out=tmp_path / "out")["queries"] == 6
    assert run("--job", bench.folder, "--include-seen", out=tmp_path / "all")["queries"] == 8


def test_no_heavy_package_is_needed_for_scores(tmp_path: Path) -> None:
    path = outcomes(tmp_path)
    code = "import sys; from ianvs_specdec.commands.cli import main; code = main(sys.argv[1:]); "
    code += "print([name for name in ('torch', 'sklearn', 'threadpoolctl') if name in sys.modules]); sys.exit(code)"
    command = [sys.executable, "-c", code, "route", "eval", "--outcomes", str(path), "-o", str(tmp_path / "out")]
    done = subprocess.run([*command, "--resamples", "100"], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@NO_PLOT
@pytest.mark.slow
def test_recorded_outcomes_of_routellm(tmp_path: Path) -> None:
    """What RouteLLM (arXiv 2406.18665) tells of these records: random near 0.5, the oracle well above 1."""
    archive, path = shared_file("data", "routellm", "mmlu_responses_csv.tar.gz"), tmp_path / "outcomes.csv"
    assert main(["data", "routellm", str(archive), "-o", str(path)]) == 0
    document = run("--outcomes", path, "--router", "RandomRouter", out=tmp_path / "out")
    assert document["queries"] == 14_042
    assert values(document, "always-edge")["quality"] == pytest.approx(68.1, abs=0.05)
    assert values(document, "always-cloud")["quality"] == pytest.approx(80.6, abs=0.05)
    assert values(document, "random")["apgr"] == pytest.approx(0.5)
    assert values(document, "oracle")["apgr"] == pytest.approx(1.285, abs=0.01)
    drawn = document["by_name"]["RandomRouter"]
    assert drawn["apgr"] == pytest.approx(0.5, abs=0.03)
    assert drawn["apgr_high"] - drawn["apgr_low"] < 0.05
