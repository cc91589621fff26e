"""The judge: who is asked what, what is kept, and what happens when it does not do its work."""

from __future__ import annotations

import json
import logging
import math
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ianvs_specdec.answers.configuration import Configuration
from ianvs_specdec.answers.journal import Journal
from ianvs_specdec.benchmarks.judge import JudgeSettings, judge, judge_all
from ianvs_specdec.benchmarks.judge import log as judging_log
from ianvs_specdec.benchmarks.judge_prompts import FASTCHAT_FILE, SHIPPED, conversations, read_prompts
from ianvs_specdec.benchmarks.processor import DatasetProcessor
from ianvs_specdec.benchmarks.scorers import scorer
from ianvs_specdec.benchmarks.scoring import scores
from ianvs_specdec.errors import UserError
from ianvs_specdec.llm.api.backend import tell_once
from ianvs_specdec.metrics import METRICS
from ianvs_specdec.metrics.judge import all_turn_scores
from ianvs_specdec.plugin.response import Response
from ianvs_specdec.types import Completion, Trace
from tests.support.judge_stub import JudgeStub, judging
from tests.support.paths import shared_file

KEY = "sk-judge-0123456789"


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[JudgeStub]:
    monkeypatch.setenv("JUDGE_KEY", KEY)
    with judging() as server:
        yield server


def settings(stub: JudgeStub, **more: Any) -> dict[str, Any]:
    return {
        "judge_model": "gpt-4",
        "judge_base_url": stub.url,
        "judge_key_env": "JUDGE_KEY",
        "judge_retries": 0,
        **more,
    }


def question(number: int, group: str = "writing", turns: int = 2) -> dict[str, Any]:
    texts = [f"question {number}.{turn}" for turn in range(1, turns + 1)]
    return {"turns": texts, "id": f"q{number}", "group": group, "scorer": "judge"}


def answered(rows: list[dict[str, Any]]) -> list[Response]:
    """Results of a test case: each turn is answered with a text that names the query and the turn."""
    results = []
    for row in rows:
        query = row["query"]
        trace = {"chunks": ((0.1, 1),), "steps": ()}
        texts = [f"answer {query['id']}.{turn}" for turn in range(1, len(query["turns"]) + 1)]
        turns = [{"completion": text, "trace": trace} for text in texts]
        result = Response(turns=turns, scorer=query["scorer"], usage={"prompt_tokens": 1, "completion_tokens": 1})
        result.row = row
        results.append(result)
    return results


def processed(hyperparameters: dict[str, Any], questions: list[Any], answers: list[Any]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = DatasetProcessor(**hyperparameters)(SimpleNamespace(x=questions, y=answers)).x
    return rows


def case(stub: JudgeStub, count: int, **more: Any) -> list[Response]:
    references = {"references": ["", ""]}
    return answered(processed(settings(stub, **more), [question(i) for i in range(count)], [references] * count))


def second_turn(prompt: str) -> bool:
    return "<second_reply>" in prompt


def by_turn(first: int, second: int) -> Callable[[str], str]:
    """A judge that gives one rating to first turns, another to second ones."""
    return lambda prompt: f"Rating: [[{second if second_turn(prompt) else first}]]"


def test_the_score_is_the_mean_of_both_turns(stub: JudgeStub) -> None:
    stub.judgment = by_turn(4, 9)
    results = case(stub, 3)
    assert scores(results, [None] * 3) == [6.5, 6.5, 6.5]
    assert len(stub.bodies) == 6
    for number in range(3):
        first, second = sorted((p for p in stub.prompts() if f"question {number}.1" in p), key=second_turn)
        assert f"answer q{number}.1" in first
        assert f"answer q{number}.2" not in first
        assert f"answer q{number}.2" in second


def test_the_judge_is_asked_as_the_official_one(stub: JudgeStub) -> None:
    scores(case(stub, 1), [None])
    for body in stub.bodies:
        assert (body["model"], body["temperature"], body["max_tokens"]) == ("gpt-4", 0.0, 2048)
        assert [message["role"] for message in body["messages"]] == ["system", "user"]
    assert set(stub.keys) == {f"Bearer {KEY}"}


def test_references_reach_the_judge(stub: JudgeStub) -> None:
    rows = processed(settings(stub), [question(1, "math")], [{"references": ["the sum", "the product"]}])
    scores(answered(rows), [None])
    first, second = sorted(stub.prompts(), key=second_turn)
    assert "the sum" in first
    assert "<second_model_solution>\nthe product\n</second_model_solution>" in second


def test_a_query_alone_is_scored_as_among_others(stub: JudgeStub) -> None:
    stub.judgment = by_turn(2, 3)
    (result,) = case(stub, 1)
    answers = [turn["completion"] for turn in result["turns"]]
    assert scorer("judge")(answers, result.row["gold"]) == 2.5


def test_without_a_judge_there_is_no_score(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        rows = processed({}, [question(1)], [{"references": []}])
    assert "no judge_model is set" in caplog.text
    assert scores(answered(rows), [{"references": []}]) == [None]
    assert scorer("judge")(["a", "b"], {"references": []}) is None


def test_queries_without_all_answers_are_not_judged(stub: JudgeStub) -> None:
    results = case(stub, 4)
    results[0]["turns"] = []
    results[1]["turns"] = results[1]["turns"][:1]
    results[2]["error"] = "no answer"
    found = scores(results, [None] * 4)
    assert found[:3] == [None, None, None]
    assert found[3] is not None
    assert len(stub.bodies) == 2


def test_a_failed_query_has_the_score_of_empty_answers_but_for_the_judge(stub: JudgeStub) -> None:
    def failed(name: str, gold: Any) -> float | None:
        (found,) = scores([{"scorer": name, "error": "no answer", "turns": [{"completion": "B"}]}], [gold])
        return found

    program = {"prompt": "def f():\n", "entry_point": "f", "test": "def check(f): pass"}
    assert failed("choice", "B") == failed("text", {"references": ["", "B"]}) == 0.0
    assert failed("code", {**program, "run": 1.0}) == 0.0
    assert failed("code", program) is None
    assert failed("text", {"references": []}) is None
    assert failed("none", "B") is None
    results = case(stub, 2)
    results[0]["error"] = "no answer"
    found = scores(results, [None] * 2)
    assert found[0] is None
    assert len(stub.bodies) == 2


def test_other_scorers_beside_the_judge(stub: JudgeStub, caplog: pytest.LogCaptureFixture) -> None:
    stub.judgment = by_turn(5, 5)
    questions = [question(1), {"turns": ["Which?"], "id": "q2", "scorer": "choice"}, {"turns": ["x"], "scorer": "none"}]
    with caplog.at_level(logging.WARNING):
        rows = processed(settings(stub), questions, [{}, "B", ""])
    assert "(scorers choice)" in caplog.text
    results = answered([{**row, "query": {"id": "", **row["query"]}} for row in rows])
    results[1]["turns"] = [{"completion": "B"}]
    assert scores(results, [{}, "B", ""]) == [5.0, 100.0, None]


def test_judgments_are_asked_for_at_the_same_time(stub: JudgeStub) -> None:
    stub.meeting = threading.Barrier(4)
    scores(case(stub, 4, judge_concurrency=4), [None] * 4)
    assert len(stub.bodies) == 8


def test_equal_answers_are_judged_once(stub: JudgeStub) -> None:
    results = case(stub, 1) * 5
    assert len(set(scores(results, [None] * 5))) == 1
    assert len(stub.bodies) == 2


def journal(job: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (job / "journal.jsonl").read_text(encoding="utf-8").splitlines()]


def test_nothing_is_judged_twice(stub: JudgeStub, job: Path, new_run: Callable[..., None]) -> None:
    before = scores(case(stub, 3), [None] * 3)
    assert len(stub.bodies) == 6
    lines = [line for line in journal(job) if "answer" in line]
    assert len(lines) == 6
    assert {line["side"] for line in lines} == {"judge"}
    new_run()
    stub.shutdown()
    stub.server_close()
    assert scores(case(stub, 3), [None] * 3) == before, "a judge that is not there any more is not asked"
    assert len(stub.bodies) == 6


def test_what_is_new_is_judged(
    stub: JudgeStub, job: Path, new_run: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    scores(case(stub, 2), [None] * 2)
    new_run()
    scores(case(stub, 3), [None] * 3)
    assert len(stub.bodies) == 6
    new_run()
    with caplog.at_level(logging.WARNING):
        scores(case(stub, 2, judge_max_tokens=100), [None] * 2)
    assert len(stub.bodies) == 10
    assert "judge: 6 earlier answers" in caplog.text
    assert "sampling.max_tokens 2048 -> 100" in caplog.text
    new_run(fresh=True)
    scores(case(stub, 2), [None] * 2)
    assert len(stub.bodies) == 14


@pytest.fixture
def official() -> Path:
    return shared_file("data", "mt_bench", FASTCHAT_FILE)


def test_every_judgment_names_its_prompts_and_other_prompts_judge_anew(
    stub: JudgeStub, job: Path, new_run: Callable[..., None], tmp_path: Path
) -> None:
    stub.judgment = by_turn(4, 9)
    assert scores(case(stub, 1), [None]) == [6.5]
    mine = tmp_path / "mine.jsonl"
    mine.write_text(SHIPPED.read_text(encoding="utf-8").replace("chat assistant", "program"), encoding="utf-8")
    stub.judgment = by_turn(2, 3)
    assert scores(case(stub, 1, judge_prompts=str(mine)), [None]) == [2.5]
    names = [line["prompts"] for line in journal(job) if "answer" in line]
    assert names == ["specdec-judge-v1"] * 2 + [f"mine.jsonl ({read_prompts(mine).digest[:12]})"] * 2
    values = [line["value"] for line in journal(job) if "config_id" in line]
    assert [value["judge_prompts"] for value in values] == [read_prompts().digest, read_prompts(mine).digest]
    new_run()
    assert scores(case(stub, 1), [None]) == [6.5]
    assert scores(case(stub, 1, judge_prompts=str(mine.rename(tmp_path / "renamed.jsonl"))), [None]) == [2.5]
    assert len(stub.bodies) == 4


def test_what_the_official_prompts_once_judged_is_found(stub: JudgeStub, job: Path, official: Path) -> None:
    """A journal from when the official prompts were the only ones: its configurations name no prompts."""
    sampling = {"max_tokens": 2048, "temperature": 0.0}
    before = Configuration("gpt-4", {"backend": "api", "server": stub.url, "model": "gpt-4", "sampling": sampling})
    turns, answers = ["question 0.1", "question 0.2"], ["answer q0.1", "answer q0.2"]
    earlier = Journal(job / "journal.jsonl", "an earlier run")
    for messages in conversations(read_prompts(official), turns, answers, ["", ""], "writing"):
        completion = Completion("Rating: [[3]]", [], 1, 1, "stop", Trace([], []))
        earlier.put(before, messages, completion, side="judge", hardware={})
    earlier.close()
    assert scores(case(stub, 1, judge_prompts=str(official)), [None]) == [3.0]
    assert not stub.bodies
    scores(case(stub, 1), [None])
    assert len(stub.bodies) == 2, "our own prompts are others"
    scores(case(stub, 2, judge_prompts=str(official)), [None] * 2)
    assert [line.get("prompts") for line in journal(job) if "answer" in line] == [
        *(None, None, "specdec-judge-v1", "specdec-judge-v1"),
        *("MT-Bench official (FastChat)", "MT-Bench official (FastChat)"),
    ]
    assert len([line for line in journal(job) if "config_id" in line]) == 2


def test_that_scores_are_not_comparable_with_published_ones_is_told(
    stub: JudgeStub, caplog: pytest.LogCaptureFixture, official: Path
) -> None:
    tell_once.cache_clear()
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
    first, second = all_turn_scores().items()
    assert (first[0], second[0]) == ("Turn 1 Score", "Turn 2 Score")
    assert first[1]([None] * 3, rows) == 4.0
    assert second[1]([None] * 3, rows) == 9.0, "of the two that have a rating"
    assert METRICS["Accuracy"]([None] * 3, rows) == 6.5
    assert len(stub.bodies) == 6


def test_turns_without_a_judge_have_no_score(job: Path) -> None:
    rows = [[False, result, result, None] for result in answered(processed({}, [question(1)], [""]))]
    assert all(math.isnan(metric([""], rows)) for metric in all_turn_scores().values())


def test_a_judge_that_answers_nonsense_is_one_message(stub: JudgeStub) -> None:
    stub.judgment = lambda prompt: "I like it. " * 50 + "Nine of ten!"
    with pytest.raises(UserError, match="no answer has a rating: 4 judgments of the judge gpt-4 are missing") as error:
        scores(case(stub, 2), [None] * 2)
    assert "expected a rating from 1 to 10 such as [[5]]" in str(error.value)
    assert "Nine of ten!" in str(error.value)
    assert len(str(error.value)) < 400


def test_some_nonsense_costs_the_queries_their_score_and_is_told(
    stub: JudgeStub, caplog: pytest.LogCaptureFixture
) -> None:
    stub.judgment = lambda prompt: "Rating: [[12]]" if "question 1.2" in prompt else "Rating: [[6]]"
    with caplog.at_level(logging.WARNING):
        assert scores(case(stub, 3), [None] * 3) == [6.0, None, 6.0]
    (message,) = [record.getMessage() for record in caplog.records if record.name == judging_log.name]
    assert message == (
        "1 of 3 queries have no score: 1 judgments of the judge gpt-4 are missing; the first: "
        "expected a rating from 1 to 10 such as [[5]], got 'Rating: [[12]]' "
        "(the next run asks the judge for them anew, and no model)"
    )


def test_nonsense_is_asked_anew_once_a_run_and_kept_where_there_is_nothing_else(
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
    assert "2 judgments without a rating could not be asked for anew: the judge: " in caplog.text
    new_run()
    stub.judgment = lambda prompt: "Rating: [[3]]"
    assert scores(case(stub, 3), [None] * 3) == [6.0, 3.0, 6.0]


@pytest.mark.parametrize(
    ("more", "end"),
    [({}, "judge_retries permits 0"), ({"judge_retries": 3, "judge_retry_budget": 0}, "judge_retry_budget is used up")],
)
def test_what_ended_the_attempts_is_told_in_the_judges_words(
    stub: JudgeStub,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    more: dict[str, Any],
    end: str,
) -> None:
    monkeypatch.setattr("ianvs_specdec.llm.api.limits.FREE_REPEATS", 0)
    stub.judgment = lambda prompt: 500 if "question 7." in prompt else "Rating: [[6]]"
    assert scores(case(stub, 8, **more), [None] * 8) == [6.0] * 7 + [None]
    assert f"(no further attempt: {end}" in caplog.text
    assert "api_" not in caplog.messages[-1]


def test_a_wrong_key_is_one_message_without_the_key(stub: JudgeStub) -> None:
    stub.judgment = lambda prompt: 401
    with pytest.raises(UserError) as error:
        scores(case(stub, 5), [None] * 5)
    assert "the judge: " in str(error.value)
    assert "401" in str(error.value)
    assert KEY not in str(error.value)
    assert len(stub.bodies) <= 8


def test_a_judge_that_is_not_there_is_not_waited_for(stub: JudgeStub) -> None:
    results = case(stub, 40)
    stub.shutdown()
    stub.server_close()
    with pytest.raises(UserError, match="the judge: ") as error:
        scores(results, [None] * 40)
    assert stub.url in str(error.value)


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


def test_some_failures_cost_the_queries_their_score_and_are_asked_again(
    stub: JudgeStub, job: Path, new_run: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    stub.judgment = lambda prompt: 500 if "question 7." in prompt else "Rating: [[6]]"
    with caplog.at_level(logging.WARNING):
        found = scores(case(stub, 8), [None] * 8)
    assert found == [6.0] * 7 + [None]
    assert "1 of 8 queries have no score: 2 judgments of the judge gpt-4 are missing; the first: " in caplog.text
    failed = [line for line in journal(job) if "failed" in line]
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
        ({"judge_base_url": "http://localhost/v1"}, "judge_base_url", "no judge_model"),
        ({"judge_model": 4}, "judge_model", "must be a text"),
        ({"judge_model": "m", "judge_concurrency": 0}, "judge_concurrency", "whole number from 1"),
        ({"judge_model": "m", "judge_concurrency": 2.5}, "judge_concurrency", "whole number from 1"),
        ({"judge_model": "m", "judge_deadline": "soon"}, "judge_deadline", "judge_deadline must be"),
        ({"judge_model": "m", "judge_key_env": ""}, "judge_key_env", "judge_key_env must be"),
        ({"judge_model": "m", "judge_prompts": "nowhere.jsonl"}, "judge_prompts", "no file nowhere.jsonl"),
        ({"judge_model": "m", "judge_key_env": "sk-1"}, "judge_key_env", "judge_key_env must be the name of an"),
        (
            {"judge_model": "m", "judge_base_url": "http://a:b@c"},
            "judge_base_url",
            "URL under judge_base_url must hold",
        ),
        ({"judge_modle": "m"}, "judge_modle", "Did you mean 'judge_model'"),
        ({"run_code": "yes"}, "run_code", "true or false"),
        ({"code_timeout": 0}, "code_timeout", "above 0"),
    ],
)
def test_settings_that_cannot_work(hyperparameters: dict[str, Any], key: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        DatasetProcessor.check_hyperparameters(hyperparameters)
    assert error.value.key == key
    assert message in str(error.value)


def test_no_judge_is_no_error() -> None:
    assert JudgeSettings.parse({"judge_model": None, "slo_ttft": 1.0}) is None
    assert judge_all([]) == []
    assert judge(["a"], "text") is None


@pytest.mark.parametrize(
    ("asked", "answer", "message"),
    [
        (question(1, "math"), {"references": ["only one"]}, "judged against a reference for each turn"),
        (question(1, "reasoning"), {"references": ["", "two"]}, "judged against a reference for each turn"),
        (question(1, "coding"), "", "judged against a reference for each turn"),
        (question(1, turns=3), "", "has prompts for 2 turns, the question has 3"),
    ],
)
def test_rows_that_cannot_be_judged_are_found_before_a_model_is_asked(
    stub: JudgeStub, asked: dict[str, Any], answer: Any, message: str
) -> None:
    with pytest.raises(UserError, match="data row 2") as error:
        processed(settings(stub), [question(0), asked], ["", answer])
    assert message in str(error.value)
    processed({}, [question(0), asked], ["", answer])
