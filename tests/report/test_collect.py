"""What the report says is what the leaderboard says; what is damaged or missing is told."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.benchmarks.scorers import SCORERS
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Completion, Step, Trace
from ianvs_specdec.report.collect import collect, to_csv
from ianvs_specdec.workspace.scoring import TOGETHER
from tests.support.workspace import COLUMNS, Bench, Side, choice, completion


def leaderboard(bench: Bench) -> list[dict[str, str]]:
    with (bench.folder / "rank" / "all_rank.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_figures_are_the_leaderboards_to_the_last_digit(bench: Bench) -> None:
    rows = leaderboard(bench)
    for case, row in zip(collect(bench.folder)["cases"], rows, strict=True):
        assert (case["rank"], case["algorithm"]) == (int(row["rank"]), row["algorithm"])
        for name in COLUMNS:
            value = case["figures"][name]
            assert ("" if value is None else str(value)) == row[name]


def test_without_a_leaderboard_the_same_figures_are_computed_from_the_answers(bench: Bench) -> None:
    before = {case["id"]: case["figures"] for case in collect(bench.folder)["cases"]}
    shutil.rmtree(bench.folder / "rank")
    after = {case["id"]: case["figures"] for case in collect(bench.folder)["cases"]}
    assert before == after
    assert all(case["rank"] is None for case in collect(bench.folder)["cases"])


def test_csv_and_json_hold_the_same(bench: Bench) -> None:
    document = collect(bench.folder)
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


def test_over_two_models_speedup_may_exceed_tau_so_it_is_no_models(bench: Bench) -> None:
    """Seconds weigh in a speedup and steps in tau: a fast edge has many of these and few of those."""
    text, every = "The answer is B.", range(len(bench.rows))
    edge = Side("edge", "EagleSpecDec", [completion(text, slow=0.01)], pace=0.005)
    cloud = Side("cloud", "EagleSpecDec", [completion(text, drafting=True)])
    found = [("Alone", edge, None), ("Alone", None, cloud), ("Asks both", edge, cloud)]
    for router, *sides in found:
        bench.case(f"{router}{sides[0] is None}", [tuple(sides) for _ in every], backend="EagleSpecDec")
    bench.case("Mixed", [(edge, None) if index % 2 else (None, cloud) for index in every], backend="EagleSpecDec")
    cases = {case["router"]: case for case in collect(bench.folder)["cases"]}
    above = {name: case["figures"]["Speedup"] > case["figures"]["Mean Accepted Tokens"] for name, case in cases.items()}
    assert above["Mixed"]
    assert not above["AloneFalse"]
    assert not above["AloneTrue"]
    assert {name: case["alone"] for name, case in cases.items()} == {
        "EdgeOnly": "edge",
        "CloudOnly": "cloud",
        "OddRouter": None,
        "AloneFalse": "edge",
        "AloneTrue": "cloud",
        "Asks bothFalse": None,
        "Mixed": None,
    }


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


def kinds(tmp_path: Path, groups: list[str]) -> dict[str, Any]:
    bench = Bench(tmp_path, [choice(number, group=group) for number, group in enumerate(groups)])
    bench.case("CloudOnly", [(None, Side("cloud", "autoregressive", [completion("B")])) for _ in groups])
    return collect(bench.folder)["cases"][0]


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        (["astronomy", "anatomy"], []),
        (["one", "two", "three"], []),
        (["writing", "roleplay", "reasoning", "math"], []),
        (["writing", "roleplay", "reasoning", "translation", "rag"], ["multi-turn conversation", "rag", "translation"]),
        (["astronomy", "college_physics", "own"], ["STEM", "own"]),
    ],
)
def test_categories_where_they_make_fewer_kinds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: list[str], expected: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert sorted(kinds(tmp_path, groups)["categories"]) == expected


def damaged(folder: Path) -> None:
    path = folder / "answers.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join([lines[0], lines[1][:40] + "\n", *lines[2:]]), encoding="utf-8")


def notes_of(bench: Bench, folder: Path) -> list[str]:
    return next(case for case in collect(bench.folder)["cases"] if case["id"] == folder.name)["notes"]


def test_a_damaged_line_is_told_and_costs_one_answer(bench: Bench) -> None:
    folder = next((bench.folder / "edgeonly").iterdir())
    damaged(folder)
    assert notes_of(bench, folder) == ["damaged lines of answers.jsonl are left out: 2"]
    case = next(case for case in collect(bench.folder)["cases"] if case["id"] == folder.name)
    assert case["answered"] == 7
    assert case["figures"]["Accuracy"] == 50.0, "the leaderboard's figure stands"


@pytest.mark.parametrize("name", ["answers.jsonl", "config.yaml", "environment.json"])
def test_a_missing_file_is_told(bench: Bench, name: str) -> None:
    folder = next((bench.folder / "edgeonly").iterdir())
    (folder / name).unlink()
    assert f"no {name}" in notes_of(bench, folder)


def test_a_missing_folder_leaves_the_leaderboards_row(bench: Bench) -> None:
    folder = next((bench.folder / "edgeonly").iterdir())
    shutil.rmtree(folder)
    case = next(case for case in collect(bench.folder)["cases"] if case["id"] == folder.name)
    assert case["figures"]["Accuracy"] == 50.0
    assert "its folder is not in the workspace" in case["notes"][0]


def test_without_the_data_file_what_needs_it_is_left_out_and_told(bench: Bench) -> None:
    bench.data.unlink()
    document = collect(bench.folder)
    assert any("questions.jsonl is not there" in note for note in document["notes"])
    case = document["cases"][0]
    assert case["figures"]["Accuracy"] == 50.0, "the leaderboard knows"
    assert all("turns" not in query for query in document["queries"])
    assert case["notes"] == []


def test_changed_references_are_told(bench: Bench) -> None:
    rows = [choice(number, gold="C") for number in range(8)]
    bench.data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (note,) = collect(bench.folder)["cases"][3]["notes"]
    assert "these figures differ: Accuracy 12.5 (leaderboard: 87.5)" in note


def test_scorers_that_ask_or_run_are_not_called(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def called(*_: Any) -> float:
        raise AssertionError("a report asked")

    for name in ("judge", "code"):
        monkeypatch.setitem(SCORERS, name, called)
        monkeypatch.setitem(TOGETHER, name, called)
    for path in bench.folder.glob("*/*/answers.jsonl"):
        path.write_text(path.read_text().replace('"scorer": "choice"', '"scorer": "judge"'))
    assert collect(bench.folder)["cases"][0]["figures"]["Accuracy"] == 50.0


@pytest.mark.parametrize("content", [(), ("notes.txt",)])
def test_a_folder_without_results_is_one_clear_message(tmp_path: Path, content: tuple[str, ...]) -> None:
    for name in content:
        (tmp_path / name).write_text("nothing of ours")
    with pytest.raises(UserError, match="holds no results of Ianvs"):
        collect(tmp_path)
    with pytest.raises(UserError, match="is not a folder"):
        collect(tmp_path / "absent")


def test_credentials_in_addresses_are_left_out(bench: Bench) -> None:
    path = next((bench.folder / "edgeonly").iterdir()) / "config.yaml"
    path.write_text(path.read_text().replace("model: edge", "model: edge\n    api_base_url: https://me:secret@host/v1"))
    document = collect(bench.folder)
    assert "secret" not in json.dumps(document)
    assert "https://host/v1" in json.dumps(document)


def test_names_tell_test_cases_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    bench = Bench(tmp_path, [choice(0)])
    # The name that the back end had in earlier workspaces is told as the one it has.
    for length, backend in (("fixed:2", "autoregressive"), ("fixed:4", "specdec")):
        bench.case("CloudOnly", [(None, Side("cloud", backend, [completion("B")]))], length=length)
    names = [case["name"] for case in collect(bench.folder)["cases"]]
    assert names == [f"CloudOnly · autoregressive (length=fixed:{number})" for number in (2, 4)]
