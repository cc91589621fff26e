"""The report's document: leaderboard values, damaged and missing files, names."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.benchmarks.scorers import SCORERS
from ianvs_specdec.commands.cli import main
from ianvs_specdec.common.types import Completion, Step, Trace
from ianvs_specdec.report.collect import collect, to_csv
from ianvs_specdec.workspace.scoring import BATCH_SCORERS
from tests.support.workspace import COLUMNS, Bench, Side, choice, completion

Document = dict[str, Any]


def test_figures_are_the_leaderboards_to_the_last_digit(bench: Bench, document: Document) -> None:
    with (bench.folder / "rank" / "all_rank.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for case, row in zip(document["cases"], rows, strict=True):
        assert (case["rank"], case["algorithm"]) == (int(row["rank"]), row["algorithm"])
        for name in COLUMNS:
            value = case["figures"][name]
            assert ("" if value is None else str(value)) == row[name]


def test_without_a_leaderboard_figures_are_computed_from_the_answers(bench: Bench, document: Document) -> None:
    shutil.rmtree(bench.folder / "rank")
    cases = collect(bench.folder)["cases"]
    assert {case["id"]: case["figures"] for case in cases} == {
        case["id"]: case["figures"] for case in document["cases"]
    }
    assert all(case["rank"] is None for case in cases)


def test_csv_and_json_hold_the_same(document: Document) -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(document))))
    assert len(rows) == len(document["cases"]) == 4
    for row, case in zip(rows, document["cases"], strict=True):
        for column in document["columns"]:
            value = case["figures"].get(column["name"])
            assert row[column["name"]] == ("" if value is None else repr(value))
        assert (row["job"], row["id"], row["router"]) == (case["job"], case["id"], case["router"])


def test_a_workspace_of_several_jobs_is_one_report(bench: Bench) -> None:
    other = Bench(bench.root, bench.rows, job="another")
    other.case("EdgeOnly", [(Side("edge", "autoregressive", [completion("B")]), None) for _ in bench.rows])
    document = collect(bench.root / "workspace")
    assert document["jobs"] == ["another", "job"]
    assert [case["job"] for case in document["cases"]].count("another") == 1
    assert len(document["queries"]) == len(bench.rows)


def test_speedup_and_tau_are_compared_for_single_models(bench: Bench) -> None:
    edge, cloud = (Side(side, "EagleSpecDec", [completion("B", drafting=True)]) for side in ("edge", "cloud"))
    bench.case("Asks both", [(edge, cloud)] * 8)
    bench.case("Mixed", [(edge, None), (None, cloud)] * 4)
    alone = {case["router"]: case["alone"] for case in collect(bench.folder)["cases"]}
    none = dict.fromkeys(("OddRouter", "Asks both", "Mixed"))
    assert alone == {"EdgeOnly": "edge", "CloudOnly": "cloud", **none}


def test_acceptance_by_position_is_the_share_of_all_drafts(bench: Bench) -> None:
    """As vLLM counts it: a plain step is no draft, and a shorter draft has no second token."""
    steps = [Step(3, 2, 3, 4), Step(1, 1, 2, 2), Step(0, 0, 1, 1), Step(7, 0, 1, 8)]
    ids = list(range(8))
    answer = Completion("B", ids, 9, 8, "stop", Trace([(1.0, 1), (2.0, 7)], steps))
    sums = Completion("B", ids, 9, 8, "stop", Trace([(1.0, 8)], drafts=(9, 4)))
    for backend, second in (("EagleSpecDec", answer), ("api", sums)):
        sides = [(None, Side("cloud", backend, [second if index == 5 else answer])) for index in range(8)]
        bench.case("Positions", sides, backend=backend)
    found = {case["name"]: case["positions"] for case in collect(bench.folder)["cases"]}
    assert found["Positions · EagleSpecDec"] == {"drafts": 24, "rates": [0.6667, 0.3333]}
    assert found["Positions · api"] is None, "of one answer only the sums are known"
    assert found["CloudOnly · autoregressive"] is None


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        (["one", "two", "three"], []),
        (["writing", "roleplay", "reasoning", "translation", "rag"], ["multi-turn conversation", "rag", "translation"]),
        (["astronomy", "college_physics", "own"], ["STEM", "own"]),
    ],
)
def test_categories_are_shown_if_they_are_fewer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: list[str], expected: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    bench = Bench(tmp_path, [choice(number, group=group) for number, group in enumerate(groups)])
    bench.case("CloudOnly", [(None, Side("cloud", "autoregressive", [completion("B")])) for _ in groups])
    assert sorted(collect(bench.folder)["cases"][0]["categories"]) == expected


@pytest.fixture
def folder(bench: Bench) -> Path:
    """The first test case's."""
    return next((bench.folder / "edgeonly").iterdir())


def case_of(bench: Bench, folder: Path) -> dict[str, Any]:
    return next(case for case in collect(bench.folder)["cases"] if case["id"] == folder.name)


def change(folder: Path, number: int, edit: Callable[[dict[str, Any]], object]) -> None:
    """Edit the first turn of some answers of a test case."""
    path = folder / "answers.jsonl"
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for row in rows[:number]:
        for side in ("result", "edge"):
            edit(row[side]["turns"][0])
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def test_lossless_needs_a_comparison_of_every_answer(bench: Bench, folder: Path) -> None:
    change(folder, 3, lambda turn: turn.update(baseline=None))
    cases = {case["id"]: case for case in collect(bench.folder)["cases"]}
    case = cases.pop(folder.name)
    assert (case["figures"]["Lossless"], case["known"]["Lossless"]) == (None, [5, 8])
    assert all(case["figures"]["Lossless"] == 100.0 and "Lossless" not in case["known"] for case in cases.values())


LOAD = [
    {"run": "1", "answers": 6, "seconds": 9.0, "others": 0.01, "steal": 0.0},
    {"run": "2", "answers": 2, "seconds": 9.0, "others": 0.4, "doubt": "other programs took 40% of the processors"},
]
MODULES = {"edgemodel": {"target": "fused", "threads": 2}, "cloudmodel": [{"target": "fused"}, {"target": "vllm"}]}


def test_load_and_target_are_in_the_report(bench: Bench, folder: Path) -> None:
    (folder / "environment.json").write_text(json.dumps({"load": LOAD, "modules": MODULES}), encoding="utf-8")
    change(folder, 5, lambda turn: turn["trace"].update(target="fused"))
    case = case_of(bench, folder)
    assert (case["load"], case["targets"]) == (LOAD, {"edge": {"fused": 5}})
    assert "times are doubtful: other programs took 40% of the processors" in case["notes"]
    environment = case["environment"]
    assert (environment["modules.edgemodel.target"], environment["modules.cloudmodel.2.target"]) == ("fused", "vllm")
    assert environment["load.2.others"] == "0.4"


def test_equal_notes_are_one_line(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    for share, config in enumerate(sorted(bench.folder.glob("*/*/config.yaml")), 70):
        load = [{"doubt": f"other programs took {share}% of the processors"}]
        (config.parent / "environment.json").write_text(json.dumps({"load": load}), encoding="utf-8")
    assert main(["report", "workspace"]) == 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "doubtful" in line]
    assert line.startswith("note: 4 of 4 test cases: times are doubtful: other programs took 7")
    assert "(of the first, " in line


def test_a_damaged_line_is_noted_and_costs_one_answer(bench: Bench, folder: Path) -> None:
    lines = (folder / "answers.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / "answers.jsonl").write_text("".join([lines[0], lines[1][:40] + "\n", *lines[2:]]), encoding="utf-8")
    case = case_of(bench, folder)
    assert case["notes"] == ["damaged lines of answers.jsonl are left out: 2"]
    assert case["answered"] == 7
    assert case["figures"]["Accuracy"] == 50.0, "the leaderboard's figure stands"


def test_missing_files_are_noted_and_the_row_remains(bench: Bench, folder: Path) -> None:
    others = [config.parent for config in sorted(bench.folder.glob("*/*/config.yaml")) if config.parent != folder]
    for name, other in zip(("answers.jsonl", "config.yaml", "environment.json"), others, strict=True):
        (other / name).unlink()
        assert f"no {name}" in case_of(bench, other)["notes"]
    shutil.rmtree(folder)
    case = case_of(bench, folder)
    assert case["figures"]["Accuracy"] == 50.0
    assert "its folder is not in the workspace" in case["notes"][0]


def test_a_missing_data_file_is_noted(bench: Bench) -> None:
    bench.data.unlink()
    document = collect(bench.folder)
    assert any("questions.jsonl is not found" in note for note in document["notes"])
    case = document["cases"][0]
    assert case["figures"]["Accuracy"] == 50.0, "the leaderboard knows"
    assert all("turns" not in query for query in document["queries"])
    assert case["notes"] == []


def test_changed_references_are_noted(bench: Bench) -> None:
    rows = [choice(number, gold="C") for number in range(8)]
    bench.data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (note,) = collect(bench.folder)["cases"][3]["notes"]
    assert "these figures differ: Accuracy 12.5 (leaderboard: 87.5)" in note


def test_a_report_calls_no_judge_and_runs_no_code(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def called(*_: Any) -> float:
        raise AssertionError("a report asked")

    for name in ("judge", "code"):
        monkeypatch.setitem(SCORERS, name, called)
        monkeypatch.setitem(BATCH_SCORERS, name, called)
    for path in bench.folder.glob("*/*/answers.jsonl"):
        path.write_text(path.read_text().replace('"scorer": "choice"', '"scorer": "judge"'))
    assert collect(bench.folder)["cases"][0]["figures"]["Accuracy"] == 50.0


def test_credentials_in_addresses_are_left_out(bench: Bench, folder: Path) -> None:
    path = folder / "config.yaml"
    path.write_text(path.read_text().replace("model: edge", "model: edge\n    api_base_url: https://me:secret@host/v1"))
    document = collect(bench.folder)
    assert "secret" not in json.dumps(document)
    assert "https://host/v1" in json.dumps(document)


def test_names_of_test_cases_are_unique(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    bench = Bench(tmp_path, [choice(0)])
    # The name that the back end had in earlier workspaces is told as the one it has.
    for length, backend in (("fixed:2", "autoregressive"), ("fixed:4", "specdec")):
        bench.case("CloudOnly", [(None, Side("cloud", backend, [completion("B")]))], length=length)
    names = [case["name"] for case in collect(bench.folder)["cases"]]
    assert names == [f"CloudOnly · autoregressive (length=fixed:{number})" for number in (2, 4)]
