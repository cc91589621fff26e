"""The report on a real run: its figures are the leaderboard's, and can be had from the answers alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.commands.cli import main
from ianvs_specdec.report.metrics import METRICS
from ianvs_specdec.report.metrics.columns import KNOWN
from ianvs_specdec.report.metrics.router_quality import all_router_quality
from tests.support.harness import Workplace, questions


def report(workplace: Workplace, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.chdir(workplace.root)
    assert main(["report", "workspace", "--json", "report.json"]) == 0
    document: dict[str, Any] = json.loads(Path("report.json").read_text(encoding="utf-8"))
    return document


@pytest.mark.slow
def test_a_real_runs_report_equals_its_leaderboard(
    workplace: Workplace,
    models: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    workplace.settings("edge", model=str(models[0]), max_tokens=12)
    workplace.settings("cloud", model=str(models[1]), max_tokens=12)
    workplace.algorithms("RandomRouter", "OracleRouter")
    workplace.data(questions(5, 1))
    outcome = workplace.ianvs()
    assert outcome.code == 0, outcome.output
    board = workplace.leaderboard()

    document = report(workplace, monkeypatch)
    notes = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note:")]
    assert all("Router APGR is empty" in note or "times are doubtful" in note for note in notes), notes
    assert len(document["cases"]) == len(board) == 4
    rows = {row["url"].rpartition("/")[2]: row for row in board.values()}
    metrics = [name for name in next(iter(rows.values())) if name in METRICS]
    assert len(metrics) > 30
    for case in document["cases"]:
        for name in metrics:
            value = case["figures"][name]
            assert ("" if value is None else str(value)) == rows[case["id"]][name]

    # Both sides of every query are known: the oracle has asked for them, and the journal has kept them.
    (panel,) = document["routing"]
    assert panel["queries"] == 6
    assert {curve["router"] for curve in panel["curves"]} >= {"RandomRouter"}

    # Tokens have their texts: put together they are the answer.
    drafted = [answer for answer in document["answers"] if answer["backend"] == "PromptLookup"]
    assert drafted
    for answer in drafted:
        assert len(answer["tokens"]) == len(answer["kinds"]) == answer["completion_tokens"]
        assert "".join(answer["tokens"]).rstrip("\ufffd") == answer["text"].rstrip("\ufffd")

    # Without the leaderboard the same figures come from the answers, to the last digit. The routers' quality does not:
    # it needs the job's journal, and is in the panel above. How many answers a figure knows is told beside it.
    metrics = [name for name in metrics if name not in all_router_quality() and not name.endswith(KNOWN)]
    shutil.rmtree(workplace.workspace / "rank")
    again = {case["id"]: case["figures"] for case in report(workplace, monkeypatch)["cases"]}
    for case in document["cases"]:
        assert {name: again[case["id"]][name] for name in metrics} == {n: case["figures"][n] for n in metrics}
