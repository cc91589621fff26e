"""Killed and failed runs resume without losing or repeating answers."""

from __future__ import annotations

import os
import random
import time
from typing import Any

import pytest

from tests.support.counting_api import CountingAPI, serving
from tests.support.harness import Workplace, questions, untimed

KNOWLEDGE, DIALOGUES = 36, 6
NEEDED = 2 * (KNOWLEDGE + 2 * DIALOGUES)

posix = pytest.mark.skipif(os.name != "posix", reason="sends signals")


def answered(workplace: Workplace) -> dict[str, str]:
    """Journal key -> the fingerprint of the prompt, which every answer of the API ends with."""
    return {line["key"]: line["answer"]["text"].split()[-1] for line in workplace.journal()}


def texts(workplace: Workplace) -> dict[tuple[str, str], list[Any]]:
    """The answers of each test case, row by row."""
    return {
        case: [(row["index"], row["is_hard"], row["result"]["completion"]) for row in workplace.answers(*case)]
        for case in workplace.leaderboard()
    }


@posix
@pytest.mark.parametrize("wanted_kills", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_a_killed_run_asks_nothing_twice(workplace: Workplace, api: CountingAPI, wanted_kills: int) -> None:
    workplace.on_api(api.url)
    workplace.data(questions(KNOWLEDGE, DIALOGUES))
    chance = random.Random(20)
    kills, known = 0, dict[str, str]()
    while kills < wanted_kills:
        before = len(api.asked)
        run = workplace.start()
        if len(known) < NEEDED - 8:
            wanted = before + chance.randrange(7)
            run.wait_for(lambda: "[1/4]" in run.stderr and len(api.asked) >= wanted)  # noqa: B023
        else:
            stage = f"[{chance.randint(1, 4)}/4]"
            run.wait_for(lambda: stage in run.stderr)  # noqa: B023
        time.sleep(chance.uniform(0, 0.04))
        kills += run.kill()
        asked = [ask.prompt for ask in api.asked[before:]]
        assert not set(asked) & set(known.values()), "an answer in the journal was asked for again"
        now = answered(workplace)
        assert now.items() >= known.items(), "an answer was lost"
        assert len(set(asked) - set(now.values())) <= 1, "more than the answer in flight was lost"
        known = now
    outcome = workplace.ianvs()
    assert outcome.code == 0, outcome.output
    assert len(answered(workplace)) == NEEDED
    assert NEEDED <= len(api.asked) <= NEEDED + kills
    assert not list(workplace.workspace.rglob("*.partial.jsonl"))
    assert not list(workplace.workspace.rglob("*.tmp"))
    leaderboard, answers = untimed(workplace.leaderboard()), texts(workplace)

    before = len(api.asked)
    assert workplace.ianvs("--fresh").code == 0
    assert len(api.asked) == before + NEEDED
    assert untimed(workplace.leaderboard()) == leaderboard
    assert texts(workplace) == answers


@pytest.mark.parametrize("death", ["close", "cut", 503])
def test_a_failing_cloud_keeps_the_earlier_answers(workplace: Workplace, death: str | int) -> None:
    with serving() as edge, serving() as cloud:
        port = cloud.server_address[1]
        workplace.on_api(edge.url)
        workplace.settings("cloud", api_base_url=cloud.url, api_retries=0)
        workplace.algorithms("EdgeOnly", "CloudOnly")
        workplace.data(questions(10))
        cloud.dies_at, cloud.death = 6, death
        outcome = workplace.ianvs()
        assert outcome.code == 1
        (line,) = outcome.lines("failed: row 7 of 10")
        assert f"the API at {cloud.url} gave no answer after 1 attempt" in line
        assert "Traceback" not in outcome.output
        assert workplace.leaderboard().keys() == {("EdgeOnly", "api")}
        assert [line["side"] for line in workplace.journal()] == ["edge"] * 10 + ["cloud"] * 6
        kept = set(answered(workplace).values())
    with serving(port) as revived:
        outcome = workplace.ianvs()
        assert outcome.code == 0, outcome.output
        assert len(edge.asked) == 10
        assert len(revived.asked) == 4
        assert not {ask.prompt for ask in revived.asked} & kept
    assert {row["Queries"] for row in workplace.leaderboard().values()} == {"10.0"}
    assert len(workplace.leaderboard()) == 2
