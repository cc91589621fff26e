"""``specdec route eval``: from recorded outcomes and scores to tables, or to one clear message and no file."""

from __future__ import annotations

import csv
import gzip
import importlib.util
import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from ianvs_specdec.benchmarks.rows import query_of
from ianvs_specdec.cli import main
from ianvs_specdec.learned.calibration import Calibration
from ianvs_specdec.learned.classifier import CLASSIFIERS, Classifier
from ianvs_specdec.learned.folder import TrainedRouter
from ianvs_specdec.outcomes.recorded import digests, load_outcomes
from tests.support.paths import shared_file
from tests.support.workspace import Bench, Side, choice, completion, usual

HEADER = "query,edge_correct,cloud_correct"
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


@pytest.fixture(autouse=True)
def kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CLASSIFIERS, "rivers", f"{__name__}:Rivers")


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
    document["by_name"] = {router["name"]: router for router in document["routers"]}
    return document


def values(document: dict[str, Any], name: str) -> dict[str, float]:
    return {key: found["value"] for key, found in document["by_name"][name]["metrics"].items()}


def refused(capsys: pytest.CaptureFixture[str], *arguments: object, out: Path) -> str:
    """The one line that is said; nothing is written."""
    assert main(["route", "eval", *map(str, arguments), "-o", str(out), "--resamples", "100"]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1
    assert not out.exists()
    return told.err


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


def test_without_matplotlib_the_rest_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *rest: None if name == "matplotlib" else find(name, *rest)
    )
    run("--outcomes", outcomes(tmp_path), out=tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == FILES
    assert "pip install 'ianvs-specdec[" in capsys.readouterr().err


def test_the_same_command_writes_the_same(tmp_path: Path) -> None:
    path = outcomes(tmp_path)
    scores = file(tmp_path, "router,row,score\n" + "".join(f"R,{i},{(i * 7) % 11}\n" for i in range(60)), "scores.csv")
    first, second = (run("--outcomes", path, "--scores", scores, out=tmp_path / name) for name in "ab")
    assert first == second


def test_queries_seen_in_training_are_left_out_for_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


@pytest.mark.parametrize("by", ["row", "group"])
def test_the_held_out_part_is_the_one_of_training(tmp_path: Path, by: str) -> None:
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
        ("", "there are no scores"),
        ("router,row,score\n", "there are no scores"),
        ("router,row,value\nR,0,1\n", "the column score is missing; found: router, row, value"),
        ("row,score\n0,1\n", "the column router is missing"),
        ("router,score\nR,1\n", "the column query_id or row is missing"),
        ("router,row,score\nR,0,nan\n", "scores.csv:2: score must be a number, not 'nan'"),
        ("router,row,score\nR,0,-inf\n", "scores.csv:2: score must be a number, not '-inf'"),
        ("router,row,score\nR,0,high\n", "scores.csv:2: score must be a number, not 'high'"),
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
    assert "two outcomes have the id 'same'" in refused(
        capsys, "--outcomes", path, "--scores", scores, out=tmp_path / "o"
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"", "there are no outcomes in it"),
        (b"query,edge_correct,cloud_right\na,1,0\n", "no cloud_correct; found: query, edge_correct, cloud_right"),
        (b"query;edge_correct;cloud_correct\na;1;0\n", "Columns are to be separated by commas"),
        (f"{HEADER}\nok,1,0\ncaf\u00e9,1,0\n".encode("latin-1"), "csv: cannot be read after line 2: not UTF-8"),
        (f"{HEADER}\na,1,0\n".encode("utf-16"), "not UTF-8 text"),
        (f"{HEADER}\na,nan,0\n".encode(), "outcomes.csv:2: edge_correct must be true, false or a number from 0 to 1"),
        (f"{HEADER}\na,yes,0\n".encode(), "2: edge_correct must be true, false or a number from 0 to 1, not 'yes"),
        (f"{HEADER}\na,1,\n".encode(), "outcomes.csv:2: cloud_correct must be"),
        (f"{HEADER}\na,1\n".encode(), "outcomes.csv:2: 2 columns, but the header"),
        (f"{HEADER}\n\"a,1,0\n".encode(), "columns, but the header"),
        (f"{HEADER},edge_correct\na,1,0,1\n".encode(), "two columns are named 'edge_correct'"),
    ],
)  # fmt: skip
def test_bad_outcomes(tmp_path: Path, capsys: Any, text: bytes, told: str) -> None:
    assert told in refused(capsys, "--outcomes", file(tmp_path, text), out=tmp_path / "out")


@pytest.fixture(scope="module")
def rivers(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, float]]:
    """A trained router, and what is measured of it on the outcomes as this program writes them."""
    folder = tmp_path_factory.mktemp("plain")
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(CLASSIFIERS, "rivers", f"{__name__}:Rivers")
        document = run("--outcomes", outcomes(folder), "--router", trained(folder / "rivers"), out=folder / "out")
    return folder / "rivers", values(document, "rivers")


@pytest.mark.parametrize(
    "variant",
    ["bom", "quoted bom", "crlf", "cr", "extra", "quoted", "gzip", "words", "long", "upper"],
)
def test_files_of_other_programs(tmp_path: Path, rivers: tuple[Path, dict[str, float]], variant: str) -> None:
    name, text = "outcomes.csv", "\n".join([HEADER, *lines()]) + "\n"
    if variant == "words":
        words = {"0": " False", "1": "TRUE"}
        text = "\n".join(
            [HEADER, *(",".join([a, words[b], words[c]]) for a, b, c in (row.split(",") for row in lines()))]
        )
    made = {
        "bom": "\ufeff" + text,
        "quoted bom": "\ufeff" + text.replace(HEADER, '"query","edge_correct","cloud_correct"'),
        "crlf": text.replace("\n", "\r\n"),
        "cr": text.replace("\n", "\r"),
        "extra": text.replace("\n", ",x,\n").replace("cloud_correct,x,", "cloud_correct,note,"),
        "quoted": text.replace("Which river 0?", '"Which ""river"" 0,\nand why?"'),
        "long": text.replace("Which river 0?", "Which river " + "\u00e9" * 100_000),
    }
    data = made.get(variant, text).encode()
    if variant == "gzip":
        name, data = "outcomes.csv.gz", gzip.compress(data)
    path = file(tmp_path, data, "OUTCOMES.CSV" if variant == "upper" else name)
    router, expected = rivers
    told = values(run("--outcomes", path, "--router", router, out=tmp_path / "out"), "rivers")
    assert {k: v for k, v in told.items() if "ms" not in k and "overhead" not in k} == {
        k: v for k, v in expected.items() if "overhead" not in k
    }


def test_rows_that_are_there_twice_count_twice(tmp_path: Path) -> None:
    once = run("--outcomes", outcomes(tmp_path), "--router", trained(tmp_path / "r"), out=tmp_path / "a")
    path = outcomes(tmp_path, [*lines(), *lines()], name="twice.csv")
    twice = run("--outcomes", path, "--router", tmp_path / "r", out=tmp_path / "b")
    assert twice["queries"] == 120
    assert values(twice, "r")["apgr"] == pytest.approx(values(once, "r")["apgr"], abs=1e-5)


def test_outcomes_without_a_gap_are_told_once_and_leave_cells_empty(tmp_path: Path, capsys: Any) -> None:
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


def test_costs_make_a_second_axis(tmp_path: Path) -> None:
    rows = [f"{line},0.001,{0.01 if i % 3 else 0.05}" for i, line in enumerate(lines())]
    path = outcomes(tmp_path, rows, f"{HEADER},edge_cost,cloud_cost")
    document = run("--outcomes", path, "--router", trained(tmp_path / "r"), out=tmp_path / "out")
    found = values(document, "r")
    assert found["cost"] == pytest.approx(1000 * (20 * 0.05 + 40 * 0.001) / 60, abs=1e-4)
    # Rivers are a third of the queries, and most of the money.
    assert found["cpt50_money"] > 1.5 * found["cpt50"]
    assert "oracle by cost" in document["by_name"]
    assert {item["axis"] for item in document["comparisons"]} == {"share", "money"}


def test_a_routers_bad_score_is_told(tmp_path: Path, capsys: Any) -> None:
    router = trained(tmp_path / "r", hard=float("nan"))
    told = refused(capsys, "--outcomes", outcomes(tmp_path), "--router", router, out=tmp_path / "out")
    assert "its score of the query with id '0' is nan" in told


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--router", "nowhere/r"), "router.json"),
        (("--router", "RandomRuter"), "Did you mean 'RandomRouter'"),
        (("--resamples", "5"), "--resamples must be at least"),
        (("--by", "group"), "--held-out"),
        (("--held-out", "1.5"), "--held-out must be"),
        (("--threshold", "0.5"), "--threshold is for --scores"),
        (("--sample", "-1"), "--sample must be 0 or more"),
        (("--threads", "0"), "--threads must be 1 or more"),
    ],
)
def test_bad_arguments(tmp_path: Path, capsys: Any, arguments: tuple[str, ...], told: str) -> None:
    path, out = outcomes(tmp_path), tmp_path / "out"
    assert main(["route", "eval", "--outcomes", str(path), "-o", str(out), *arguments]) == 2
    assert told in capsys.readouterr().err
    assert not out.exists()


def test_out_that_is_a_file_is_told_before_the_work(tmp_path: Path, capsys: Any) -> None:
    path = outcomes(tmp_path)
    assert main(["route", "eval", "--outcomes", "nowhere.csv", "-o", str(path)]) == 2
    assert f"--out {path}: {path} is a file" in capsys.readouterr().err
    assert main(["route", "eval", "--outcomes", str(path), "-o", str(path / "deeper")]) == 2
    assert f"{path} is a file" in capsys.readouterr().err


def test_baselines_may_be_named(tmp_path: Path) -> None:
    document = run("--outcomes", outcomes(tmp_path), "--router", "random", "oracle", out=tmp_path / "out")
    assert list(document["by_name"]) == ["always-edge", "always-cloud", "random", "oracle"]


def test_a_job_tells_its_outcomes_and_routers(tmp_path: Path, monkeypatch: Any) -> None:
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


def test_of_a_job_routers_with_equal_scores_are_told_by_what_they_decided(tmp_path: Path, monkeypatch: Any) -> None:
    bench = usual(Bench(tmp_path / "bench", [choice(number) for number in range(8)]))
    edge, cloud = (Side(name, "specdec", [completion("The answer is B.")]) for name in ("edge", "cloud"))
    scores = [0.9 if index % 2 else 0.1 for index in range(8)]
    for name, sent in (("Again", (1, 3, 5, 7)), ("BudgetRouter", (1,))):
        results = [(None, cloud) if index in sent else (edge, None) for index in range(8)]
        bench.case(name, results, scores=scores)
    monkeypatch.chdir(bench.root)
    document = run("--job", bench.folder, out=tmp_path / "out")
    assert values(document, "OddRouter")["share"] == 50.0
    assert values(document, "BudgetRouter")["share"] == 12.5
    assert "Again" not in document["by_name"]


def test_what_a_jobs_router_was_trained_with_is_left_out(tmp_path: Path, monkeypatch: Any) -> None:
    bench = usual(Bench(tmp_path / "bench", [choice(number) for number in range(8)]))
    seen = digests([query_of(row["question"], row["answer"], index) for index, row in enumerate(bench.rows[:2])])
    TrainedRouter("rivers", Rivers(0.9), Calibration(), 0.5, seen).save(bench.root / "router")
    config = next((bench.folder / "oddrouter").glob("*/config.yaml"))
    told = yaml.safe_load(config.read_text(encoding="utf-8"))
    told["modules"][2]["hyperparameters"] = {"cloud_share": 0.5, "router": {"name": "LearnedRouter", "path": "router"}}
    config.write_text(yaml.safe_dump(told), encoding="utf-8")
    monkeypatch.chdir(bench.root)
    assert run("--job", bench.folder, out=tmp_path / "out")["queries"] == 6
    assert run("--job", bench.folder, "--include-seen", out=tmp_path / "all")["queries"] == 8


def test_no_heavy_package_is_needed_for_scores(tmp_path: Path) -> None:
    path = outcomes(tmp_path)
    code = "import sys; from ianvs_specdec.cli import main; code = main(sys.argv[1:]); "
    code += "print([name for name in ('torch', 'sklearn', 'threadpoolctl') if name in sys.modules]); sys.exit(code)"
    command = [sys.executable, "-c", code, "route", "eval", "--outcomes", str(path), "-o", str(tmp_path / "out")]
    done = subprocess.run([*command, "--resamples", "100"], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.slow
def test_recorded_outcomes_of_routellm(tmp_path: Path) -> None:
    """What RouteLLM (arXiv 2406.18665) tells of these records: random near 0.5, the oracle well above 1."""
    archive = shared_file("data", "routellm", "mmlu_responses_csv.tar.gz")
    rows = [[*HEADER.split(","), "group"]]
    with tarfile.open(archive) as files:
        for member in sorted(files.getnames()):
            opened = files.extractfile(member)
            assert opened is not None
            reader = csv.reader(io.StringIO(opened.read().decode(), newline=""))
            next(reader)
            rows += [[*row, member] for row in reader]
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    document = run("--outcomes", file(tmp_path, text.getvalue()), "--router", "RandomRouter", out=tmp_path / "out")
    assert document["queries"] == 14_042
    assert values(document, "always-edge")["quality"] == pytest.approx(68.1, abs=0.05)
    assert values(document, "always-cloud")["quality"] == pytest.approx(80.6, abs=0.05)
    assert values(document, "random")["apgr"] == pytest.approx(0.5)
    assert values(document, "oracle")["apgr"] == pytest.approx(1.285, abs=0.01)
    drawn = document["by_name"]["RandomRouter"]["metrics"]["apgr"]
    assert drawn["value"] == pytest.approx(0.5, abs=0.03)
    assert drawn["high"] - drawn["low"] < 0.05
