"""``concurrency`` with local models: the same answers, order and journal as without it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support import journals
from tests.support.harness import Workplace, questions, untimed

AT_ONCE = 6


def prepared(workplace: Workplace, models: tuple[Path, Path], *backends: str, **settings: Any) -> Workplace:
    """A job with two local models, in float32 and of few tokens."""
    for side, model in zip(("edge", "cloud"), models, strict=True):
        workplace.settings(side, model=str(model), dtype="float32", max_tokens=12, **settings)
    workplace.backends(*backends)
    return workplace


def at_once(workplace: Workplace, number: int) -> None:
    path = workplace.example / "benchmarkingjob.yaml"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("benchmarkingjob:\n", f"benchmarkingjob:\n  concurrency: {number}\n", 1))


def answers(workplace: Workplace) -> dict[str, Any]:
    """The time-independent parts of the answers by key."""
    return {
        line["key"]: (
            line["side"],
            line["answer"]["token_ids"],
            line["answer"]["text"],
            line["answer"]["trace"]["steps"],
        )
        for line in workplace.journal()
    }


def rows(workplace: Workplace) -> dict[Any, list[Any]]:
    return {
        case: [(row["index"], row["is_hard"], row["result"]["completion"]) for row in workplace.answers(*case)]
        for case in workplace.leaderboard()
    }


@pytest.mark.parametrize(
    "settings", [{}, pytest.param({"temperature": 0.8, "acceptance": "coupled"}, marks=pytest.mark.slow)]
)
def test_answers_are_those_of_one_at_a_time(
    workplace: Workplace, models: tuple[Path, Path], settings: dict[str, Any]
) -> None:
    prepared(workplace, models, "autoregressive", "PromptLookup", **settings)
    workplace.algorithms("RandomRouter")
    workplace.data(questions(8, 1))
    assert workplace.ianvs().code == 0
    alone = answers(workplace), rows(workplace), untimed(workplace.leaderboard())
    at_once(workplace, AT_ONCE)
    began = time.monotonic()
    outcome = workplace.ianvs("--fresh")
    took = time.monotonic() - began
    assert outcome.code == 0, outcome.output
    asked = workplace.journal()[len(alone[0]) :]
    assert len(asked) == len(alone[0])
    assert {line["side"] for line in asked} == {"edge", "cloud"}
    assert (answers(workplace), rows(workplace), untimed(workplace.leaderboard())) == alone
    assert any("busy" in line["answer"]["trace"] for line in asked)
    # Concurrent answers share the busy time.
    assert sum(line["answer"]["trace"].get("busy") or 0.0 for line in asked) <= took


@pytest.mark.skipif(os.name != "posix", reason="sends signals")
def test_ctrl_c_keeps_the_answers(workplace: Workplace, models: tuple[Path, Path]) -> None:
    prepared(workplace, models, "autoregressive")
    workplace.algorithms("EdgeOnly")
    workplace.data(questions(120))
    at_once(workplace, AT_ONCE)
    run = workplace.start()
    run.wait_for(lambda: len(workplace.journal()) >= 20)
    run.interrupt()
    outcome = run.wait()
    assert outcome.code == 130
    assert len(outcome.lines("interrupted")) == 1
    assert "Traceback" not in outcome.output
    kept = answers(workplace)
    journal = journals.text(workplace.workspace)
    assert '"failures"' not in journal, "what the end of the run cut off is no failure of a question"
    workplace.data(questions(len(kept) + AT_ONCE))
    assert workplace.ianvs().code == 0
    assert answers(workplace).items() >= kept.items()
    assert len(workplace.journal()) == len(answers(workplace)), "something was asked twice"
