"""Jobs with all routers, modes and repeats, and their replay from the journal."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.support import journals
from tests.support.counting_api import CountingAPI
from tests.support.harness import ALGORITHMS, EXAMPLE, TRAINED, Outcome, Workplace, questions, untimed

BACKENDS = ("autoregressive", "PromptLookup")
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


def test_repeats_have_separate_answers(workplace: Workplace, api: CountingAPI) -> None:
    workplace.on_api(api.url)
    workplace.data(questions(6, 2))
    workplace.algorithms("CloudOnly")
    path = workplace.example / "benchmarkingjob.yaml"
    path.write_text(re.sub(r"\n  name: .*\n", "\\g<0>  repeats: 3\n", path.read_text(encoding="utf-8"), count=1))
    outcome = workplace.ianvs()
    assert outcome.code == 0, outcome.output
    assert len(api.asked) == 3 * (6 + 2 * 2)
    keys = [line["key"] for line in workplace.journal()]
    assert len(set(keys)) == len(keys) == len(api.asked)

    outcome = workplace.ianvs()
    assert outcome.code == 0, outcome.output
    assert not outcome.lines("generated again")
    assert len(outcome.lines("replayed 8")) == 3
    assert len(api.asked) == len(keys), "a repeat was asked again"

    path.write_text(path.read_text(encoding="utf-8").replace("  repeats: 3\n", ""))
    assert workplace.ianvs().code == 0
    assert len(api.asked) == len(keys), "the first repeat is the run without repeats"


@pytest.mark.slow
def test_all_routers_then_replayed_and_nothing_asked_twice(workplace: Workplace, models: tuple[Path, Path]) -> None:
    shutil.copy(EXAMPLE / "benchmarkingjob.yaml", workplace.example)
    for part in ("router", "cascade"):
        shutil.copytree(EXAMPLE / "models" / part, workplace.example / "models" / part)
    for side, model in zip(("edge", "cloud"), models, strict=True):
        workplace.settings(side, model=str(model), max_tokens=10)
    workplace.data(questions(7, 1))
    outcome = workplace.ianvs()
    assert outcome.code == 0, outcome.output
    first, answers = workplace.leaderboard(), workplace.journal()
    assert first.keys() == {(router, backend) for router in (*ALGORITHMS, *TRAINED) for backend in BACKENDS}
    assert {row["Lossless"] for row in first.values()} == {"100.0"}
    assert {row["Speedup"] for (router, backend), row in first.items() if backend == "autoregressive"} == {"1.0"}
    # cloud_only.yaml has another draft length, so its answers are not reused.
    assert len(answers) == len({entry["key"] for entry in answers}) == 2 * 2 * 9 + 3 * 9
    assert workplace.ianvs().code == 0
    assert workplace.journal() == answers
    again = workplace.leaderboard()
    assert untimed(again) == untimed(first)
    assert {row["Throughput"] for row in again.values()} == {row["Throughput"] for row in first.values()}


def test_every_router_can_decide_after_the_edge_has_answered(workplace: Workplace, api: CountingAPI) -> None:
    workplace.on_api(api.url)
    workplace.data(questions(8, 1))
    before = workplace.ianvs()
    assert before.code == 0, before.output
    early = {router: workplace.answers(router, "api") for router in ALGORITHMS}

    shutil.rmtree(workplace.workspace / "rank")  # it keeps earlier runs' rows, and has no column for the mode
    workplace.testenv(hard_example_mining_mode="inference-then-mining")
    after = workplace.ianvs()
    assert after.code == 0, after.output
    for router in ALGORITHMS:
        late = workplace.answers(router, "api")
        for row, earlier in zip(late, early[router], strict=True):
            assert row["is_hard"] == earlier["is_hard"]
            assert row["result"]["completion"] == earlier["result"]["completion"]
            assert row["result"]["routing"]["router"] == router
            assert row["edge"] is not None
            assert (row["cloud"] is not None) == row["is_hard"]
    assert len(api.asked) == 2 * (8 + 2)
