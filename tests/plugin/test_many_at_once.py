"""Concurrent queries: each is sent once, waits count, and a failed query does not affect others."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.backends.base import LLM
from ianvs_specdec.common.errors import AnswerError, UserError
from ianvs_specdec.common.types import Completion, Trace
from ianvs_specdec.plugin.models import CloudModel
from ianvs_specdec.plugin.timings import Overlap, UnderWay, stamp
from ianvs_specdec.records.journal import Journal
from ianvs_specdec.report.metrics import METRICS
from tests.support import journals

QUESTIONS = [f"q{number}" for number in range(6)]


class Scripted(LLM):
    """Answers a question with itself; the questions in ``broken`` cannot be answered."""

    backend, local, concurrent = "api", False, True

    def __init__(self) -> None:
        super().__init__("scripted")
        self.asked: Counter[str] = Counter()
        self.at_once = self.most = 0
        self.broken: set[str] = set()
        self.all_there = threading.Barrier(1)
        self._mutex = threading.Lock()

    @classmethod
    def load(self) -> None: ...

    def identity(self, digests: Any) -> dict[str, Any]:
        return {"backend": "scripted"}

    def memory(self) -> int:
        return 5_000_000

    def generate(self, messages: Any, sampling: Any, on_chunk: Any = None, hints: Any = None) -> Completion:
        question = messages[-1]["content"]
        with self._mutex:
            self.asked[question] += 1
            self.at_once += 1
            self.most = max(self.most, self.at_once)
        self.all_there.wait(60)
        with self._mutex:
            self.at_once -= 1
        if question in self.broken:
            raise AnswerError("the server is gone", [(0.5, "timeout"), (1.0, "status 503")])
        trace = Trace([(0.1, 3)], failures=[(0.05, "status 500")])
        return Completion(question, [], 1, 3, "stop", trace)


@pytest.fixture
def cloud(job: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[CloudModel, Scripted]]:
    def build(**settings: Any) -> tuple[CloudModel, Scripted]:
        model = CloudModel(model="scripted", backend="api", api_base_url="http://127.0.0.1:1/v1", **settings)
        llm = Scripted()
        monkeypatch.setattr(type(model.settings), "llm", lambda self, name: llm)
        return model, llm

    return build


def ask(model: CloudModel, questions: list[str]) -> list[Any]:
    with ThreadPoolExecutor(len(questions)) as pool:
        return list(pool.map(lambda text: model.inference({"query": text, "gold": "B", "index": 0}), questions))


def test_a_concurrent_back_end_gets_all_requests_at_once(cloud: Any) -> None:
    model, llm = cloud()
    llm.all_there = threading.Barrier(len(QUESTIONS))
    responses = ask(model, QUESTIONS)
    assert [response["completion"] for response in responses] == QUESTIONS
    assert llm.most == len(QUESTIONS)


def test_other_back_ends_get_one_request_at_a_time(cloud: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scripted, "concurrent", False)
    model, llm = cloud()
    assert [response["completion"] for response in ask(model, QUESTIONS)] == QUESTIONS
    assert llm.most == 1


def test_simultaneous_equal_requests_are_sent_once(cloud: Any) -> None:
    model, llm = cloud()
    responses = ask(model, ["the same"] * 8)
    assert llm.asked == {"the same": 1}
    assert sorted(response["cached"] for response in responses) == [False] + [True] * 7


def test_a_failed_query_is_stored_and_retried(cloud: Any, new_run: Any, job: Path) -> None:
    model, llm = cloud(max_failures=2, price_completion=1000)
    llm.broken = {"q1", "q4"}
    responses = ask(model, QUESTIONS)
    assert [bool(response.get("error")) for response in responses] == [False, True, False, False, True, False]
    assert responses[1]["error"] == "the server is gone"
    assert responses[1]["failures"] == ((0.5, "timeout"), (1.0, "status 503"))
    assert responses[1]["turns"] == []
    assert [response["cost"] is None for response in responses] == [False, True, False, False, True, False]
    rows = [[True, response, None, response] for response in responses]
    gold = ["B"] * len(rows)
    assert METRICS["Failed"](gold, rows) == 2
    assert METRICS["Cloud Cost"](gold, rows) == 1000 * responses[0]["cost"] > 0, "of those that got an answer"
    assert METRICS["Retries"](gold, rows) == 4
    assert METRICS["Model Memory"](gold, rows) == 5
    journal = journals.text(job)
    assert journal.count('"failures":[[0.5,"timeout"],[1.0,"status 503"]]') == 2

    new_run()
    again, llm = cloud(max_failures=2)
    assert all("error" not in response for response in ask(again, QUESTIONS))
    assert llm.asked == {"q1": 1, "q4": 1}


def test_a_test_case_without_answers_has_no_accuracy(cloud: Any) -> None:
    model, llm = cloud(max_failures=9, price_completion=1000)
    llm.broken = set(QUESTIONS)
    rows = [[True, response, None, response] for response in ask(model, QUESTIONS)]
    gold = ["B"] * len(rows)
    with pytest.raises(UserError, match=r"none of the 6 queries got a whole answer.*; the first: the server is gone"):
        METRICS["Accuracy"](gold, rows)
    assert math.isnan(METRICS["Cloud Cost"](gold, rows))
    assert METRICS["Failed"](gold, rows) == 6


def test_more_failures_than_permitted_end_the_test_case(cloud: Any) -> None:
    model, llm = cloud(max_failures=1)
    llm.broken = set(QUESTIONS)
    assert model.inference("q0")["error"] == "the server is gone"
    with pytest.raises(UserError, match="2 queries got no answer, max_failures permits 1; the last: the server"):
        model.inference("q1")
    model, llm = cloud()
    llm.broken = set(QUESTIONS)
    with pytest.raises(AnswerError, match="the server is gone"):
        model.inference("q0")


def test_a_failed_load_is_not_repeated_by_waiting_threads(cloud: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, llm = cloud(max_failures=9)
    loads: list[str] = []

    def refuse() -> None:
        loads.append("tried")
        raise UserError("this head is for another model")

    monkeypatch.setattr(llm, "load", refuse)
    with ThreadPoolExecutor(len(QUESTIONS)) as pool:
        asked = [pool.submit(model.inference, question) for question in QUESTIONS]
    assert {str(answer.exception()) for answer in asked} == {"this head is for another model"}
    assert loads == ["tried"]


def test_the_time_of_the_journal_is_not_in_the_latency(
    cloud: Any, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long journal is read at the first look-up, and checked before a model is loaded."""
    for name, method in ((n, getattr(Journal, n)) for n in ("get", "explain_miss", "ensure_writable")):

        def slow(journal: Journal, *arguments: Any, original: Any = method) -> Any:
            clock[0] += 5.0
            return original(journal, *arguments)

        monkeypatch.setattr(Journal, name, slow)
    model, _ = cloud()
    assert model.inference("q0")["perf"]["latency"] == pytest.approx(0.1)


def test_a_query_may_set_its_temperature(job: Path, tiny_model: Path) -> None:
    settings = {"model": str(tiny_model), "dtype": "float32", "max_tokens": 12}
    greedy, hot = CloudModel(**settings), CloudModel(**settings, temperature=2.0)
    prescribed = greedy.inference({"query": {"turns": ["ab"], "temperature": 2.0, "scorer": "none"}})
    own = hot.inference({"query": {"turns": ["ab"], "scorer": "none"}})
    assert prescribed["turns"][0]["key"] == own["turns"][0]["key"]
    assert (prescribed["greedy"], greedy.inference("ab")["greedy"]) == (False, True)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    return now


def test_shares_add_up_to_the_busy_time(clock: list[float]) -> None:
    overlap = Overlap()
    first = overlap.begin()
    clock[0] += 1.0
    second = overlap.begin()
    clock[0] += 2.0
    assert overlap.end(first) == pytest.approx((3.0, 1.0 + 2.0 / 2))
    clock[0] += 3.0
    assert overlap.end(second) == pytest.approx((5.0, 2.0 / 2 + 3.0))
    clock[0] += 10.0
    third = overlap.begin()
    clock[0] += 1.0
    assert overlap.end(third) == pytest.approx((1.0, 1.0))


@pytest.mark.parametrize(("answered", "expected"), [(1.5, 3.5), (None, None)])
def test_all_times_include_the_wait_in_the_queue(answered: float | None, expected: float | None) -> None:
    trace = Trace([(1.0, 1), (1.5, 1)], thinking=1, answered=answered)
    stamp(trace, Scripted(), issued=0.0, waited=2.0, under_way=UnderWay(3.5, 2.0))
    assert trace.chunks == [(3.0, 1), (3.5, 1)]
    assert trace.answered == expected


@pytest.mark.parametrize(("number", "share"), [(1, None), (4, 0.25)])
def test_overlapping_answers_store_their_share(
    cloud: Any, job: Path, clock: list[float], number: int, share: float | None
) -> None:
    model, llm = cloud()
    llm.all_there = threading.Barrier(number, action=lambda: clock.__setitem__(0, clock[0] + 1.0))
    responses = ask(model, QUESTIONS[:number])
    assert [response["turns"][0]["trace"].get("busy") for response in responses] == [share] * number
    assert ('"busy"' in journals.text(job)) == (share is not None)
