"""The judge: requests, scores, and judgments in the journal."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.benchmarks.judge_prompts import SHIPPED, read_prompts
from ianvs_specdec.common.errors import warn_once
from ianvs_specdec.report.metrics import METRICS
from ianvs_specdec.report.metrics.judge import all_turn_scores
from ianvs_specdec.workspace.scoring import scores
from tests.benchmarks.judged import KEY, answered, by_turn, case, processed, question, second_turn, settings
from tests.support.journals import entries
from tests.support.judge_stub import JudgeStub


def test_the_score_is_the_mean_of_both_turns(stub: JudgeStub) -> None:
    stub.judgment = by_turn(4, 9)
    results = case(stub, 3)
    assert scores([*results, results[0]], [None] * 4) == [6.5] * 4
    assert len(stub.bodies) == 6, "equal answers are judged once"
    for body in stub.bodies:
        assert (body["model"], body["temperature"], body["max_tokens"]) == ("gpt-4", 0.0, 2048)
    assert set(stub.keys) == {f"Bearer {KEY}"}
    for number in range(3):
        first, second = sorted((p for p in stub.prompts() if f"question {number}.1" in p), key=second_turn)
        assert f"answer q{number}.1" in first
        assert f"answer q{number}.2" not in first
        assert f"answer q{number}.2" in second


def test_references_reach_the_judge(stub: JudgeStub) -> None:
    rows = processed(settings(stub), [question(1, "math")], [{"references": ["the sum", "the product"]}])
    scores(answered(rows), [None])
    first, second = sorted(stub.prompts(), key=second_turn)
    assert "the sum" in first
    assert "<second_model_solution>\nthe product\n</second_model_solution>" in second


def test_queries_without_all_answers_are_not_judged(stub: JudgeStub) -> None:
    results = case(stub, 4)
    results[0]["turns"] = []
    results[1]["turns"] = results[1]["turns"][:1]
    results[2]["error"] = "no answer"
    found = scores(results, [None] * 4)
    assert found[:3] == [None, None, None]
    assert found[3] is not None
    assert len(stub.bodies) == 2


def test_a_failed_query_has_the_score_of_empty_answers() -> None:
    def failed(name: str, gold: Any) -> float | None:
        (found,) = scores([{"scorer": name, "error": "no answer", "turns": [{"completion": "B"}]}], [gold])
        return found

    program = {"prompt": "def f():\n", "entry_point": "f", "test": "def check(f): pass"}
    assert failed("choice", "B") == failed("text", {"references": ["", "B"]}) == 0.0
    assert failed("code", {**program, "run": 1.0}) == 0.0
    assert failed("code", program) is None
    assert failed("text", {"references": []}) is None
    assert failed("none", "B") is None


def test_only_new_answers_are_judged(
    stub: JudgeStub, job: Path, new_run: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    scores(case(stub, 2), [None] * 2)
    new_run()
    before = scores(case(stub, 3), [None] * 3)
    assert len(stub.bodies) == 6
    assert [line["side"] for line in entries(job) if "answer" in line] == ["judge"] * 6
    new_run()
    with caplog.at_level(logging.WARNING):
        scores(case(stub, 2, judge_max_tokens=100), [None] * 2)
    assert len(stub.bodies) == 10
    assert "sampling.max_tokens 2048 -> 100" in caplog.text
    new_run(fresh=True)
    scores(case(stub, 2), [None] * 2)
    assert len(stub.bodies) == 14
    new_run()
    stub.shutdown()
    stub.server_close()
    assert scores(case(stub, 3), [None] * 3) == before, "a judge that is not there any more is not asked"


def test_other_judge_prompts_judge_again(
    stub: JudgeStub, job: Path, new_run: Callable[..., None], tmp_path: Path
) -> None:
    stub.judgment = by_turn(4, 9)
    assert scores(case(stub, 1), [None]) == [6.5]
    mine = tmp_path / "mine.jsonl"
    mine.write_text(SHIPPED.read_text(encoding="utf-8").replace("chat assistant", "program"), encoding="utf-8")
    stub.judgment = by_turn(2, 3)
    assert scores(case(stub, 1, judge_prompts=str(mine)), [None]) == [2.5]
    names = [line["prompts"] for line in entries(job) if "answer" in line]
    assert names == ["specdec-judge-v1"] * 2 + [f"mine.jsonl ({read_prompts(mine).digest[:12]})"] * 2
    values = [line["value"] for line in entries(job) if "model" in line]
    assert [value["judge_prompts"] for value in values] == [read_prompts().digest, read_prompts(mine).digest]
    new_run()
    assert scores(case(stub, 1), [None]) == [6.5]
    assert scores(case(stub, 1, judge_prompts=str(mine.rename(tmp_path / "renamed.jsonl"))), [None]) == [2.5]
    assert len(stub.bodies) == 4


def test_reasoning_of_answers_and_judgments_is_removed(stub: JudgeStub, job: Path, official: Path) -> None:
    stub.judgment = lambda prompt: "[[5]] is the middle. Rating: [[9]]"
    for prompts, score in (({}, 9.0), ({"judge_prompts": str(official)}, 5.0)):
        results = case(stub, 1, **prompts)
        for turn in results[0]["turns"]:
            turn["completion"] = f"<think>a secret</think>{turn['completion']}"
        assert scores(results, [None]) == [score]
    stub.judgment = lambda prompt: "<think>[[5]]</think> Rating: [[7]], [[8]]"
    for prompts in ({}, {"judge_prompts": str(official)}):
        assert scores(case(stub, 2, **prompts)[1:], [None]) == [8.0]
    assert "answer q0.1" in str(stub.bodies)
    assert "secret" not in str(stub.bodies)
    rules = [line["rule"] for line in entries(job) if "answer" in line]
    assert rules == ["the last marked"] * 2 + ["the first marked (FastChat)"] * 2 + ["the last marked"] * 4


def test_scores_of_unofficial_prompts_cause_a_warning(
    stub: JudgeStub, caplog: pytest.LogCaptureFixture, official: Path
) -> None:
    warn_once.cache_clear()
    case(stub, 1, judge_prompts=str(official))
    assert not caplog.messages
    for _ in range(2):
        case(stub, 1)
    (message,) = caplog.messages
    assert "scorer judge: the prompts are specdec-judge-v1" in message
    assert "judge_prompts.jsonl under judge_prompts" in message


def test_the_scores_of_each_turn(stub: JudgeStub, job: Path) -> None:
    def judgment(prompt: str) -> str:
        return "Rating: none" if "question 1.2" in prompt else by_turn(4, 9)(prompt)

    stub.judgment = judgment
    rows = [[False, result, result, None] for result in case(stub, 3)]
    found = {name: metric([None] * 3, rows) for name, metric in all_turn_scores().items()}
    assert (found["Turn 1 Score"], found["Turn 1 Score Known"]) == (4.0, 3)
    assert (found["Turn 2 Score"], found["Turn 2 Score Known"]) == (9.0, 2), "of the two that have a rating"
    assert METRICS["Accuracy"]([None] * 3, rows) == 6.5
    assert len(stub.bodies) == 6


def test_without_a_judge_there_is_no_score(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        rows = processed({}, [question(1)], [{"references": []}])
    assert "no judge_model is set" in caplog.text
    assert scores(answered(rows), [{"references": []}]) == [None]
