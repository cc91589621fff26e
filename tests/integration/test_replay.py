"""Replay from the journal without importing model libraries."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import journals
from tests.support.harness import Outcome, Workplace, questions

HEAVY = ("torch", "transformers", "openai", "pandas")


def imported(outcome: Outcome) -> set[str]:
    """Top-level packages whose import Python reported (PYTHONPROFILEIMPORTTIME)."""
    lines = [line for line in outcome.stderr.splitlines() if line.startswith("import time:")]
    assert len(lines) > 100
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in lines}


@pytest.mark.slow
def test_a_replayed_job_imports_no_model_library(workplace: Workplace, models: tuple[Path, Path]) -> None:
    workplace.backends("autoregressive", "PromptLookup")
    workplace.settings("edge", model=str(models[0]), max_tokens=12)
    workplace.settings("cloud", model=str(models[1]), max_tokens=12)
    workplace.algorithms("EdgeOnly")
    workplace.data(questions(6, 2))
    workplace.metric("Replayed")
    first = workplace.ianvs()
    assert first.code == 0, first.output
    before, kept = workplace.leaderboard(), journals.entries(workplace.workspace)
    assert {row["Replayed"] for row in before.values()} == {"0.0"}
    assert all(float(row["Throughput"]) > 0 and float(row["Speedup"]) > 0 for row in before.values())
    assert len(workplace.journal()) == 2 * (6 + 2 * 2)

    again = workplace.ianvs(cold=True, PYTHONPROFILEIMPORTTIME="1")
    assert again.code == 0, again.output
    assert not imported(again) & set(HEAVY)
    after = workplace.leaderboard()
    assert {row.pop("Replayed") for row in after.values()} == {"8.0"}
    for case, row in before.items():
        # Routers run again, but all times are those of the stored answers.
        same = {name for name in after[case] if name != "time"}
        assert float(row["Routing Overhead"]) > 0
        assert {name: after[case][name] for name in same} == {name: row[name] for name in same}
        assert workplace.environment_of(*case)["run"]["replayed"] == 8
        rows = workplace.answers(*case)
        assert all(row["result"]["replayed"] and turn["replayed"] for row in rows for turn in row["result"]["turns"])
    assert journals.entries(workplace.workspace) == kept
