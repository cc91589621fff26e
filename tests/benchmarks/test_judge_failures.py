"""The judge: failures, invalid settings and rows."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.plugin.processor import DatasetProcessor
from ianvs_specdec.workspace.scoring import scores
from tests.benchmarks.judged import KEY, case, processed, question, settings
from tests.support.journals import entries
from tests.support.judge_stub import JudgeStub


def test_judgments_without_a_rating_are_retried_once_a_run(
    stub: JudgeStub, job: Path, new_run: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    stub.judgment = lambda prompt: "Rating: none" if "question 1." in prompt else "Rating: [[6]]"
    for asked in (6, 8):
        for _ in range(2):
            assert scores(case(stub, 3), [None] * 3) == [6.0, None, 6.0]
            assert len(stub.bodies) == asked
        new_run()
    stub.judgment = lambda prompt: 500
    with caplog.at_level(logging.WARNING):
        assert scores(case(stub, 3), [None] * 3) == [6.0, None, 6.0]
    assert "2 judgments without a rating could not be repeated: the judge: " in caplog.text
    new_run()
    stub.judgment = lambda prompt: "Rating: [[3]]"
    assert scores(case(stub, 3), [None] * 3) == [6.0, 3.0, 6.0]


def test_a_wrong_key_is_one_message_without_the_key(stub: JudgeStub) -> None:
    stub.judgment = lambda prompt: 401
    with pytest.raises(UserError) as error:
        scores(case(stub, 5), [None] * 5)
    assert "the judge: " in str(error.value)
    assert "401" in str(error.value)
    assert KEY not in str(error.value)
    assert len(stub.bodies) <= 8


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """A test run in the background of a shell ignores the signal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_does_not_wait_for_a_judge_that_hangs(stub: JudgeStub, ctrl_c: None) -> None:
    ended = threading.Event()
    waited: list[str] = []
    stub.meeting = threading.Barrier(2, action=lambda: os.kill(os.getpid(), signal.SIGINT))

    def hang(prompt: str) -> int:
        if not ended.wait(20):
            waited.append(prompt)
        return 500

    stub.judgment = hang
    with pytest.raises(KeyboardInterrupt):
        scores(case(stub, 1), [None])
    ended.set()
    assert not waited


def test_failed_judgments_are_repeated_by_the_next_run(
    stub: JudgeStub, job: Path, new_run: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    stub.judgment = lambda prompt: 500 if "question 7." in prompt else "Rating: [[6]]"
    with caplog.at_level(logging.WARNING):
        found = scores(case(stub, 8), [None] * 8)
    assert found == [6.0] * 7 + [None]
    assert "1 of 8 queries have no score: 2 judgments of the judge gpt-4 are missing; the first: " in caplog.text
    failed = [line for line in entries(job) if "error" in line]
    assert [line["side"] for line in failed] == ["judge", "judge"]
    new_run()
    asked = len(stub.bodies)
    stub.judgment = lambda prompt: "Rating: [[3]]"
    assert scores(case(stub, 8), [None] * 8) == [6.0] * 7 + [3.0]
    assert len(stub.bodies) == asked + 2


def test_no_key(stub: JudgeStub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JUDGE_KEY")
    results = case(stub, 1, judge_base_url="https://judge.invalid/v1")
    with pytest.raises(UserError, match=r"JUDGE_KEY \(judge_key_env\) holds no API key"):
        scores(results, [None])


@pytest.mark.parametrize(
    ("hyperparameters", "key", "message"),
    [
        ({"judge_base_url": "http://localhost/v1"}, "judge_base_url", "but no judge_model"),
        ({"judge_model": 4}, "judge_model", "must be a text"),
        ({"judge_model": "m", "judge_concurrency": 0}, "judge_concurrency", "whole number from 1"),
        ({"judge_model": "m", "judge_prompts": "nowhere.jsonl"}, "judge_prompts", "no file nowhere.jsonl"),
        ({"judge_model": "m", "judge_key_env": "sk-1"}, "judge_key_env", "judge_key_env must be the name of an"),
        ({"judge_model": "m", "judge_base_url": "http://a:b@c"}, "judge_base_url", "URL under judge_base_url must"),
        ({"judge_modle": "m"}, "judge_modle", "Did you mean 'judge_model'"),
        ({"run_code": "yes"}, "run_code", "true or false"),
        ({"code_timeout": 0}, "code_timeout", "above 0"),
    ],
)
def test_invalid_judge_settings_are_errors(hyperparameters: dict[str, Any], key: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        DatasetProcessor.check_hyperparameters(hyperparameters)
    assert error.value.key == key
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("asked", "answer", "message"),
    [
        (question(1, "math"), {"references": ["only one"]}, "judged against a reference for each turn"),
        (question(1, "coding"), "", "judged against a reference for each turn"),
        (question(1, turns=3), "", "has prompts for 2 turns, the question has 3"),
    ],
)
def test_rows_that_cannot_be_judged_are_errors(
    stub: JudgeStub, asked: dict[str, Any], answer: Any, message: str
) -> None:
    with pytest.raises(UserError, match="data row 2") as error:
        processed(settings(stub), [question(0), asked], ["", answer])
    assert message in str(error.value)
    processed({}, [question(0), asked], ["", answer])
