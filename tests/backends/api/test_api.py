"""The API back end against a scripted server: what is retried, what is refused, what is counted, what is never told."""

from __future__ import annotations

import time
from typing import Any

import pytest

from ianvs_specdec.backends import APIBasedLLM
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Message, Sampling
from tests.support.stub_server import StubServer

HELLO: list[Message] = [{"role": "user", "content": "hello"}]
KEY = "sk-very-secret-0123456789"


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUB_KEY", KEY)


def llm(stub: StubServer, **options: Any) -> APIBasedLLM:
    return APIBasedLLM("stub", **{"api_base_url": stub.url, "api_key_env": "STUB_KEY", "api_timeout": 5, **options})


def test_an_answer_with_usage_and_a_chunk_per_piece(stub: StubServer) -> None:
    pieces: list[str] = []
    answer = llm(stub).generate(HELLO, Sampling(max_tokens=9), on_chunk=lambda text, tokens: pieces.append(text))
    assert answer.text == "The answer is B." == "".join(pieces)
    assert (answer.prompt_tokens, answer.completion_tokens, answer.finish_reason) == (11, 6, "stop")
    assert answer.trace.tokens == 6
    assert len(answer.trace.chunks) == 4
    times = [seconds for seconds, _ in answer.trace.chunks]
    assert times == sorted(times)
    assert times[0] > 0


def test_what_is_sent(stub: StubServer) -> None:
    llm(stub).generate(HELLO, Sampling(max_tokens=5, temperature=0.5, top_p=0.9, seed=3, stop=("x",)))
    body = stub.requests[0]["body"]
    assert body["messages"] == HELLO
    assert (body["max_tokens"], body["temperature"], body["top_p"], body["seed"], body["stop"]) == (
        5,
        0.5,
        0.9,
        3,
        ["x"],
    )
    assert body["stream_options"] == {"include_usage": True}
    assert not {"repetition_penalty", "frequency_penalty", "top_k"} & body.keys()
    llm(stub).generate(HELLO, Sampling(repetition_penalty=1.1, top_k=5))
    body = stub.requests[1]["body"]
    assert (body["repetition_penalty"], body["top_k"]) == (1.1, 5)
    assert "frequency_penalty" not in body


@pytest.mark.parametrize("fault", [429, 408, 409, 500, 503, "die", "truncate"])
def test_passing_faults_are_retried(stub: StubServer, fault: str | int) -> None:
    stub.script = [fault, fault, "ok"]
    assert llm(stub).generate(HELLO, Sampling()).text == "The answer is B."
    assert len(stub.requests) == 3


def test_what_a_caller_has_already_seen_is_not_asked_again(stub: StubServer) -> None:
    stub.script = ["die", "ok"]
    with pytest.raises(UserError):
        llm(stub).generate(HELLO, Sampling(), on_chunk=lambda text, tokens: None)
    assert len(stub.requests) == 1


def test_retry_after_is_honoured(stub: StubServer) -> None:
    stub.script, stub.headers = [429, "ok"], {"Retry-After": "0.4"}
    llm(stub).generate(HELLO, Sampling())
    assert stub.requests[1]["time"] - stub.requests[0]["time"] >= 0.4


def test_a_pause_beyond_the_deadline_is_not_waited_for(stub: StubServer) -> None:
    stub.script, stub.headers = [429], {"Retry-After": "3600"}
    started = time.monotonic()
    with pytest.raises(UserError, match=r"after 1 attempt .* would begin after the deadline \(api_deadline, 5 s\)"):
        llm(stub, api_deadline=5).generate(HELLO, Sampling())
    assert time.monotonic() - started < 600


def test_a_server_that_hangs_ends_at_the_deadline(stub: StubServer) -> None:
    stub.script = ["hang"]
    started = time.monotonic()
    with pytest.raises(UserError, match="no answer after"):
        llm(stub, api_timeout=0.3, api_deadline=0.8).generate(HELLO, Sampling())
    assert time.monotonic() - started < 60


def test_a_trickling_stream_ends_at_the_deadline(stub: StubServer) -> None:
    stub.script, stub.pieces = ["slow"], ["x"] * 4000
    started = time.monotonic()
    with pytest.raises(UserError, match="deadline"):
        llm(stub, api_timeout=5, api_deadline=0.5).generate(HELLO, Sampling())
    assert time.monotonic() - started < 60


def test_a_server_that_is_not_there(stub: StubServer) -> None:
    with pytest.raises(UserError, match=r"http://127.0.0.1:9/v1 gave no answer after 2 attempts"):
        llm(stub, api_base_url="http://127.0.0.1:9/v1", api_retries=1).generate(HELLO, Sampling())


def test_the_url_may_come_from_the_environment(stub: StubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUB_URL", stub.url)
    assert llm(stub, api_base_url="STUB_URL").generate(HELLO, Sampling()).text
    monkeypatch.delenv("STUB_URL")
    with pytest.raises(UserError, match="STUB_URL") as error:
        llm(stub, api_base_url="STUB_URL").load()
    assert error.value.key == "api_base_url"


@pytest.mark.parametrize(
    ("url", "key", "at_fault"),
    [
        ("ftp://x/v1", "k", "api_base_url"),
        ("http:///v1", "k", "api_base_url"),
        ("http://x:99999/v1", "k", "api_base_url"),
        ("http://x/v1 two", "k", "api_base_url"),
        ("http://x/v1", "sk-\n-two-lines", "api_key_env"),
        ("http://x/v1", "schlüssel", "api_key_env"),
        ("http://x/v1", " ", "api_key_env"),
    ],
)
def test_urls_and_keys_that_cannot_be(monkeypatch: pytest.MonkeyPatch, url: str, key: str, at_fault: str) -> None:
    monkeypatch.setenv("A_URL", url)
    monkeypatch.setenv("A_KEY", key)
    with pytest.raises(UserError) as caught:
        APIBasedLLM("m", api_base_url="A_URL", api_key_env="A_KEY").load()
    assert caught.value.key == at_fault
    assert key not in str(caught.value) or len(key) == 1
