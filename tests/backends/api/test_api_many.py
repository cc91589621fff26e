"""Several endpoints and concurrent requests: limits, budgets, deadlines, shutdown."""

from __future__ import annotations

import logging
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.backends import APIBasedLLM
from ianvs_specdec.common.errors import AnswerError, UserError
from ianvs_specdec.records.identity import FileDigests
from tests.backends.api.conftest import ask, llm
from tests.support.api_server import ScriptedAPI, Serve, answer, error, refusal

LONG = 60.0
BAD = refusal("503 Service Unavailable", error("down"))


@pytest.fixture
def silent(serve: Serve) -> Iterator[ScriptedAPI]:
    """Never answers."""
    released = threading.Event()

    def hang(prompt: str, number: int) -> None:
        released.wait(2 * LONG)

    yield serve(hang)
    released.set()


def test_another_endpoint_answers_at_once_after_a_failure(
    serve: Serve, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ianvs_specdec.backends.api.session.FIRST_DELAY", 2 * LONG)
    started = time.monotonic()
    bad, good = serve(lambda prompt, number: BAD), serve(lambda prompt, number: answer(prompt))
    with llm(bad, good, api_retry_budget=1, api_retries=1) as model, caplog.at_level(logging.WARNING):
        found = [ask(model, f"q{index}") for index in range(30)]
    assert [each.text for each in found] == [f"q{index}" for index in range(30)]
    assert sum(len(each.trace.failures) for each in found) == len(bad.bodies)
    assert len(good.bodies) == 30
    assert 5 <= len(bad.bodies) < 15, "after five failures in a row it is only probed"
    assert "failed 5 times in a row" in caplog.text
    assert time.monotonic() - started < LONG


def test_an_endpoint_with_a_wrong_key_is_reported_once(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    wrong = serve(lambda prompt, number: refusal("401 Unauthorized", error("who are you")))
    right = serve(lambda prompt, number: answer("yes"))
    with llm(wrong, right) as model, caplog.at_level(logging.WARNING):
        found = [ask(model) for _ in range(5)]
    assert [each.text for each in found] == ["yes"] * 5
    assert [kind for each in found for _, kind in each.trace.failures] == ["status 401"]
    assert len(wrong.bodies) == 1
    assert caplog.text.count("gets no requests") == 1


def test_the_error_lists_why_no_endpoint_is_left(serve: Serve) -> None:
    one = serve(lambda prompt, number: refusal("401 Unauthorized", error("who are you")))
    other = serve(lambda prompt, number: refusal("404 Not Found", error("no such model")))
    with llm(one, other) as model:
        for _ in range(2):
            with pytest.raises(UserError, match="no API endpoint is left") as caught:
                ask(model)
            assert not isinstance(caught.value, AnswerError)
            assert "who are you" in str(caught.value)
            assert "no such model" in str(caught.value)
    assert len(one.bodies) + len(other.bodies) == 2


def test_endpoints_have_own_keys_models_and_weights(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIRST_KEY", "first-key-1234")
    monkeypatch.setenv("SECOND_KEY", "second-key-1234")
    servers = [serve(lambda prompt, number: answer(prompt)) for _ in range(2)]
    monkeypatch.setenv("SECOND_URL", servers[1].url)
    endpoints = [
        {"base_url": servers[0].url, "model": "a/m"},
        {"base_url": "SECOND_URL", "key_env": "SECOND_KEY", "weight": 3},
    ]
    with APIBasedLLM("m", api_endpoints=endpoints, api_key_env="FIRST_KEY") as model:
        for _ in range(8):
            ask(model)
        identity = model.identity(FileDigests(Path("unused")))
    assert [len(server.bodies) for server in servers] == [2, 6]
    assert "Bearer first-key-1234" in servers[0].heads[0]
    assert "Bearer second-key-1234" in servers[1].heads[0]
    assert [server.bodies[0]["model"] for server in servers] == ["a/m", "m"]
    assert identity["servers"] == sorted([[servers[0].url, "a/m"], [servers[1].url, "m"]])


def test_retry_after_holds_for_all_requests(serve: Serve) -> None:
    replies = [refusal("429 Too Many Requests", error("wait"), headers="Retry-After: 0.5\r\n")]
    server = serve(lambda prompt, number: replies.pop() if replies else answer(prompt))
    with llm(server) as model, ThreadPoolExecutor(4) as threads:
        waiting = threads.submit(ask, model, "first")
        while not server.bodies:
            time.sleep(0.001)
        time.sleep(0.05)
        started = time.monotonic()
        assert ask(model, "second").text == "second"
        assert time.monotonic() - started > 0.3
        assert waiting.result(LONG).text == "first"


def test_concurrency_is_limited(serve: Serve) -> None:
    lock, in_flight, most = threading.Lock(), 0, 0

    def reply(prompt: str, number: int) -> bytes:
        nonlocal in_flight, most
        with lock:
            in_flight += 1
            most = max(most, in_flight)
        time.sleep(0.01)
        with lock:
            in_flight -= 1
        return BAD if number % 5 == 0 else answer(prompt)

    with llm(serve(reply), api_concurrency=3, api_retry_budget=1) as model, ThreadPoolExecutor(12) as threads:
        prompts = [f"q{index}" for index in range(40)]
        assert [found.text for found in threads.map(lambda prompt: ask(model, prompt), prompts)] == prompts
    assert most == 3


@pytest.mark.slow
def test_rates_are_limited(serve: Serve) -> None:
    server = serve(lambda prompt, number: answer(prompt))
    with llm(server, api_rate=60, api_deadline=LONG) as model:
        ask(model)
        ask(model)
        assert ask(model).trace.latency > 0.9
    with llm(server, api_token_rate=240, api_deadline=LONG) as model:
        # 512 tokens may come: that is what is reserved, at once for the first request.
        assert ask(model).text
        assert ask(model).trace.ttft > 0.5, "what the first one really used is paid"
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(ask, model)
            time.sleep(0.1)
            with pytest.raises(AnswerError, match=r"rate limit \(api_token_rate\) leaves") as caught:
                ask(model)
            assert [kind for _, kind in caught.value.failures] == ["deadline"]
            assert waiting.result(LONG).text
        assert ask(model).text, "a request that was refused leaves its turn to others"


def test_retries_of_an_outage_are_limited(serve: Serve) -> None:
    server = serve(lambda prompt, number: BAD)
    with llm(server, api_retries=4, api_retry_budget=0.25) as model, ThreadPoolExecutor(8) as threads:

        def failures(index: int) -> tuple[int, str]:
            with pytest.raises(AnswerError) as caught:
                ask(model)
            return len(caught.value.failures), str(caught.value)

        outcomes = list(threads.map(failures, range(40)))
    assert sum(count for count, _ in outcomes) == len(server.bodies) == 40 + 10 + 10
    assert any("api_retry_budget is used up" in message for _, message in outcomes)


def test_waiting_in_the_queue_ends_at_the_deadline(silent: ScriptedAPI) -> None:
    with llm(silent, api_concurrency=1, api_timeout=LONG, api_deadline=0.4) as model, ThreadPoolExecutor(3) as threads:
        started = time.monotonic()
        failed = [threads.submit(ask, model) for _ in range(3)]
        kinds = [[kind for _, kind in future.exception(LONG).failures] for future in failed]  # type: ignore[union-attr]
        assert time.monotonic() - started < LONG / 2
    assert kinds == [["deadline"]] * 3


def test_closing_fails_all_requests(silent: ScriptedAPI, serve: Serve) -> None:
    """64 in flight, 16 in the queue, and one that waits for a retry."""
    model = llm(silent, api_concurrency=64, api_timeout=LONG, api_deadline=2 * LONG)
    pausing = llm(serve(lambda prompt, number: refusal("429 No", error("wait"), headers="Retry-After: 50\r\n")))
    with ThreadPoolExecutor(81) as threads:
        futures = [threads.submit(ask, model) for _ in range(80)] + [threads.submit(ask, pausing)]
        while len(silent.bodies) < 64:
            time.sleep(0.005)
        started = time.monotonic()
        model.close()
        pausing.close()
        errors = [future.exception(LONG) for future in futures]
        assert time.monotonic() - started < LONG / 2
    assert {type(found) for found in errors} == {AnswerError}
    assert {found.failures[-1][1] for found in errors} == {"interrupted"}  # type: ignore[union-attr]
    assert len(silent.bodies) == 64


def test_a_closed_model_can_be_used_again(serve: Serve) -> None:
    server = serve(lambda prompt, number: answer(prompt))
    model = llm(server)
    for _ in range(2):
        assert ask(model).text == "hello"
        model.close()
        model.close()
    assert server.accepted == 2


@pytest.mark.slow
def test_64_streams_of_a_failing_server(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer is lost or doubled, and every failure is in a trace."""
    monkeypatch.setattr("ianvs_specdec.backends.api.session.FIRST_DELAY", 0.05)
    lock, asked, faults = threading.Lock(), Counter[str](), Counter[str]()
    replies = {
        "status 500": refusal("500 Internal Server Error", error("not now")),
        "rate limit": refusal("429 Too Many Requests", error("not now")),
        "connection": None,
        "broken stream": answer("half of it", reason="error"),
        "timeout": answer("half of it")[:150],
    }

    def reply(prompt: str, number: int) -> bytes | None:
        with lock:
            asked[prompt] += 1
            chance = zlib.crc32(f"{prompt}/{asked[prompt]}".encode()) % 16
            fault = "status 500" if prompt.startswith("doomed") else list(replies)[chance] if chance < 5 else None
            if fault:
                faults[fault] += 1
        return replies[fault] if fault else answer(f"answer to {prompt}", tokens=3 + len(prompt))

    def run(prompt: str) -> Any:
        try:
            return ask(model, prompt)
        except AnswerError as lost:
            return lost

    prompts = [f"q{index}" for index in range(300)] + [f"doomed {index}" for index in range(3)]
    with (
        llm(serve(reply), api_timeout=4, api_retry_budget=1, api_concurrency=64) as model,
        ThreadPoolExecutor(80) as threads,
    ):
        outcomes = dict(zip(prompts, threads.map(run, prompts), strict=True))
    answers = {prompt: found for prompt, found in outcomes.items() if not isinstance(found, AnswerError)}
    assert {prompt: found.text for prompt, found in answers.items()} == {q: f"answer to {q}" for q in prompts[:300]}
    assert all(found.completion_tokens == found.trace.tokens == 3 + len(q) for q, found in answers.items())
    failed = [found.trace.failures for found in answers.values()]
    failed += [found.failures for prompt, found in outcomes.items() if prompt not in answers]
    assert Counter(kind for failures in failed for _, kind in failures) == faults
    assert set(faults) == set(replies), "no kind of fault is left out"
    assert sum(asked.values()) == len(answers) + sum(faults.values()), "every answer is given once"
