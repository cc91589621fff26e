"""Concurrent requests: shared steps of our engine, disconnecting clients, an API with errors."""

from __future__ import annotations

import http.client
import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support import counting_api
from tests.support.damage import with_config

from .conftest import CYCLE, Server, serving, wait_until

FOR_EVER = 90_000
"""Tokens that take far longer than any test."""
LONG = "a long question " * 5000
"""More than one step of the engine reads."""
AT_ONCE, QUEUE = 3, 40


@pytest.fixture(scope="module")
def wide(endless: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The endless model: three places to work at."""
    arguments = ["--model", str(endless), "--concurrency", str(AT_ONCE), "--queue", str(QUEUE)]
    with serving(tmp_path_factory.mktemp("wide"), *arguments) as running:
        yield running


def start(server: Server, tokens: int, text: str = "go", **more: Any) -> http.client.HTTPConnection:
    messages = [{"role": "user", "content": text}]
    return server.begin({"model": "endless", "messages": messages, "max_tokens": tokens, **more})


def gone(server: Server) -> None:
    """Nobody is served, and the engine holds nothing."""
    server.wait_for(in_flight=0, queue_length=0, sequences=0, waiting_for_room=0, sequence_memory_bytes=0)


def test_concurrent_requests_share_the_engine(wide: Server) -> None:
    running = [start(wide, FOR_EVER, stream=True) for _ in range(AT_ONCE)]
    for connection in running:
        assert connection.getresponse().readline().startswith(b"data: ")
    waiting = start(wide, len(CYCLE.encode()))
    wide.wait_for(in_flight=AT_ONCE, queue_length=1, sequences=AT_ONCE, waiting_for_room=0)
    assert wide.metrics()["sequence_memory_bytes"] > 0
    running[0].close()
    assert json.loads(waiting.getresponse().read())["choices"][0]["message"]["content"] == CYCLE
    wide.wait_for(in_flight=AT_ONCE - 1, queue_length=0, sequences=AT_ONCE - 1)
    for connection in running[1:]:
        connection.close()
    gone(wide)


@pytest.mark.parametrize("text", ["go", LONG], ids=["decoding", "being read"])
def test_disconnected_client_frees_the_engine(wide: Server, text: str) -> None:
    before = wide.metrics()["requests_total.disconnected"]
    staying = start(wide, FOR_EVER)
    leaving = [start(wide, FOR_EVER, text) for _ in range(AT_ONCE - 1)]
    wide.wait_for(sequences=AT_ONCE)
    for connection in leaving:
        connection.close()
    wide.wait_for(in_flight=1, sequences=1)
    # While a full house works, who waits leaves too, and is never given to the engine.
    full = [start(wide, FOR_EVER) for _ in range(AT_ONCE - 1)]
    waiting = [start(wide, FOR_EVER, text) for _ in range(QUEUE)]
    wide.wait_for(in_flight=AT_ONCE, queue_length=QUEUE)
    for connection in waiting:
        connection.close()
    wide.wait_for(in_flight=AT_ONCE, queue_length=0, sequences=AT_ONCE)
    for connection in (staying, *full):
        connection.close()
    gone(wide)
    assert wide.metrics()["requests_total.disconnected"] - before == 2 * AT_ONCE - 1 + QUEUE


def test_too_large_request_is_rejected(endless: Path, tmp_path: Path) -> None:
    model = with_config(endless, tmp_path / "long", max_position_embeddings=1 << 30)
    with serving(tmp_path, "--model", str(model), "--name", "endless") as server:
        running = start(server, FOR_EVER, stream=True)
        response = running.getresponse()
        response.readline()
        refused = start(server, (1 << 31) - 1).getresponse()
        told = json.loads(refused.read())["error"]
        assert (refused.status, told["code"]) == (400, "context_length_exceeded")
        assert "MB are available: shorten the prompt, or lower max_tokens" in told["message"]
        server.wait_for(in_flight=1, sequences=1)
        running.close()
        gone(server)


def test_concurrent_answers_equal_single_ones(server: Server) -> None:
    manners: list[dict[str, Any]] = [
        {},
        {"temperature": 0.9, "seed": 5},
        {"temperature": 0.9, "seed": 6, "top_p": 0.8, "stop": ["Z", "q"]},
        {"logprobs": True, "max_tokens": 9},
        {"repetition_penalty": 1.4, "top_k": 5},
    ]

    def ask(number: int) -> Any:
        question: Any = {"role": "user", "content": f"question {number} " * (1 + number % 4)}
        with server.client().chat.completions.create(
            model="tiny",
            messages=[question],
            stream=True,
            stream_options={"include_usage": True},
            extra_body=manners[number % len(manners)],
        ) as chunks:
            *parts, last = chunks
        choices = [part.choices[0] for part in parts]
        probabilities = [round(each.logprob, 3) for one in choices if one.logprobs for each in one.logprobs.content]
        text = "".join(choice.delta.content or "" for choice in choices)
        return text, choices[-1].finish_reason, last.usage.completion_tokens, probabilities

    alone = [ask(number) for number in range(15)]
    before = server.metrics()
    with ThreadPoolExecutor(15) as pool:
        assert list(pool.map(ask, range(15))) == alone
    after = server.metrics()
    assert after["requests_total.completed"] - before["requests_total.completed"] == 15
    tokens = sum(completion_tokens for _, _, completion_tokens, _ in alone)
    assert after["completion_tokens_total"] - before["completion_tokens_total"] == tokens
    assert (after["queue_length"], after["in_flight"]) == (0, 0)


KEY = "sk-upstream-0123456789"


def ask_api(server: Server, number: int, **more: Any) -> http.client.HTTPConnection:
    messages = [{"role": "user", "content": f"question {number}"}]
    return server.begin({"model": "far", "messages": messages, "max_tokens": 20, **more})


def test_concurrent_requests_and_upstream_errors(tmp_path: Path) -> None:
    with counting_api.serving() as api:
        api.slow = 0.1
        arguments = ["--backend", "api", "--model", "far", "--set", "api_key_env=UPSTREAM_KEY", "--grace", "0"]
        arguments += ["--set", f"api_base_url={api.url}", "--set", "api_retries=0", "--queue", "0"]
        with serving(tmp_path, *arguments, UPSTREAM_KEY=KEY) as server:
            asked = [ask_api(server, number) for number in range(16)]
            server.wait_for(in_flight=16)
            answers = [json.loads(connection.getresponse().read()) for connection in asked]
            for number, answer in enumerate(answers):
                prompt = counting_api.fingerprint("far", [{"role": "user", "content": f"question {number}"}])
                assert answer["choices"][0]["message"]["content"].endswith(prompt)
                assert answer["usage"]["completion_tokens"] == 4 + int(prompt, 16) % 7
            tokens = sum(answer["usage"]["completion_tokens"] for answer in answers)
            assert server.metrics()["completion_tokens_total"] == tokens
            assert server.request("POST", "/v1/completions", {"model": "far", "prompt": "x"})[0] == 400
            assert len(api.asked) == 16

            api.dies_at, api.death = 16, "hang"
            hanging = ask_api(server, 16)
            wait_until(lambda: len(api.asked) == 17)
            api.death = 401
            response = ask_api(server, 17).getresponse()
            refused = json.loads(response.read())
            assert (response.status, refused["error"]["code"]) == (502, "upstream")
            api.death = "cut"
            text = ask_api(server, 18, stream=True).getresponse().read().decode()
            assert json.loads(text.rstrip().rpartition("data: ")[2])["error"]["code"] == "upstream"
            assert server.metrics()["requests_total.failed"] == 2

            # What hangs does not keep the server from ending.
            server.wait_for(in_flight=1)
            assert server.stop(signal.SIGTERM) == 0
            assert hanging.getresponse().status == 503
            assert KEY not in server.output + text + json.dumps(refused)
            assert "Traceback" not in server.output
