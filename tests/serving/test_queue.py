"""Queue, disconnecting clients, deadline, shutdown: each request ends once and frees its slot."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from .conftest import CYCLE, Server, serving, wait_until

OUTCOMES = ("completed", "rejected", "queue_full", "deadline", "disconnected", "shutdown", "failed")
HALF = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: 200\r\nExpect: 100-continue\r\n\r\n"
)
"""A request whose body follows when the server asks for it."""
FOR_EVER = 90_000
"""Tokens that take far longer than any test."""


def body(tokens: int, **more: Any) -> dict[str, Any]:
    return {"model": "endless", "messages": [{"role": "user", "content": "go"}], "max_tokens": tokens, **more}


def events(text: str) -> list[Any]:
    return [json.loads(line.removeprefix("data: ")) for line in text.split("\n") if line.startswith("data: {")]


@pytest.mark.parametrize(("streamed", "choices"), [(True, 1), (False, 1), (True, 3)])
def test_disconnected_client_frees_its_slot(narrow: Server, streamed: bool, choices: int) -> None:
    before = narrow.metrics()
    leaving = narrow.begin(body(FOR_EVER, stream=streamed, n=choices))
    if streamed:
        response = leaving.getresponse()
        assert response.readline().startswith(b"data: ")
        response.close()
    narrow.wait_for(in_flight=1, queue_length=choices - 1)
    leaving.close()
    narrow.idle()
    after = narrow.metrics()
    assert after["requests_total.disconnected"] - before["requests_total.disconnected"] == choices
    assert after["requests_total.completed"] == before["requests_total.completed"]
    if streamed:
        assert after["completion_tokens_total"] > before["completion_tokens_total"]
    answer = narrow.chat(body(len(CYCLE.encode()) * 2))[2]
    assert answer["choices"][0]["message"]["content"] == CYCLE * 2


def test_full_queue(narrow: Server) -> None:
    before = narrow.metrics()
    running = narrow.begin(body(FOR_EVER))
    narrow.wait_for(in_flight=1)
    waiting = [narrow.begin(body(FOR_EVER)), narrow.begin(body(FOR_EVER))]
    narrow.wait_for(queue_length=2)
    for _ in range(3):
        status, headers, refused = narrow.chat(body(1))
        assert (status, refused["error"]["code"]) == (429, "queue_full")
        assert int(headers["retry-after"]) >= 1
    for connection in waiting:
        connection.close()
    narrow.wait_for(in_flight=1, queue_length=0)
    second = narrow.begin(body(len(CYCLE.encode())))
    narrow.wait_for(in_flight=1, queue_length=1)
    running.close()
    assert json.loads(second.getresponse().read())["choices"][0]["message"]["content"] == CYCLE
    second.close()
    narrow.idle()
    after = narrow.metrics()
    grown = {name: after[f"requests_total.{name}"] - before[f"requests_total.{name}"] for name in OUTCOMES}
    assert grown == {**dict.fromkeys(OUTCOMES, 0), "queue_full": 3, "disconnected": 3, "completed": 1}


def test_requests_are_served_in_order(narrow: Server) -> None:
    blocker = narrow.begin(body(FOR_EVER))
    narrow.wait_for(in_flight=1)
    first = narrow.begin(body(len(CYCLE.encode()) * 20))
    narrow.wait_for(queue_length=1)
    second = narrow.begin(body(FOR_EVER))
    narrow.wait_for(queue_length=2)
    blocker.close()
    # Were the second at work, the first would never be answered.
    assert json.loads(first.getresponse().read())["choices"][0]["message"]["content"] == CYCLE * 20
    second.close()
    narrow.idle()


@pytest.mark.slow
def test_deadline(endless: Path, tmp_path: Path) -> None:
    import openai

    arguments = ["--model", str(endless), "--deadline", "1.5", "--grace", "0"]
    with serving(tmp_path, *arguments) as server:
        streamed, whole = server.begin(body(FOR_EVER, stream=True)), server.begin(body(FOR_EVER))
        response = streamed.getresponse()
        assert response.status == 200
        happened = events(response.read().decode())
        assert happened[0]["choices"][0]["delta"]["role"] == "assistant"
        assert happened[-1]["error"]["code"] == "deadline_exceeded"
        response = whole.getresponse()
        assert (response.status, json.loads(response.read())["error"]["type"]) == (504, "timeout")
        with pytest.raises(openai.APIError, match="deadline"):
            list(server.client().chat.completions.create(**body(FOR_EVER, stream=True)))
        server.idle()
        assert server.metrics()["requests_total.deadline"] == 3
        assert server.chat(body(1))[0] == 200


@pytest.mark.slow
def test_shutdown_without_grace(endless: Path, tmp_path: Path) -> None:
    with serving(tmp_path, "--model", str(endless), "--concurrency", "1", "--grace", "0") as server:
        streamed, waiting = server.begin(body(FOR_EVER, stream=True)), None
        response = streamed.getresponse()
        response.readline()
        waiting = server.begin(body(FOR_EVER, stream=True))
        server.wait_for(queue_length=1)
        assert server.stop(signal.SIGINT) == 0
        assert events(response.read().decode())[-1]["error"]["code"] == "shutting_down"
        refused = waiting.getresponse()
        assert refused.status == 503
        assert json.loads(refused.read())["error"]["code"] == "shutting_down"
        assert "Traceback" not in server.output


@pytest.mark.parametrize("cold", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_graceful_shutdown(endless: Path, tmp_path: Path, cold: bool) -> None:
    tokens = len(CYCLE.encode()) * 60
    with serving(tmp_path, "--model", str(endless), "--concurrency", "1", cold=cold) as server:
        idle = server.connect()
        idle.request("GET", "/health")
        idle.getresponse().read()
        running = server.begin(body(tokens, stream=True))
        response = running.getresponse()
        response.readline()
        waiting = server.begin(body(tokens))
        server.wait_for(queue_length=1)
        host, _, port = server.address.partition(":")
        late = server.connect()
        late.connect()
        late.sock.sendall(HALF)
        assert late.sock.recv(100).startswith(b"HTTP/1.1 100 ")
        server.process.send_signal(signal.SIGTERM)

        def refused() -> bool:
            try:
                socket.create_connection((host, int(port))).close()
            except OSError:
                return True
            return False

        wait_until(refused)
        late.sock.sendall(json.dumps(body(1)).encode().ljust(200))
        with late.sock.makefile("rb") as file:
            answer = file.read()
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"shutting_down" in answer
        text = response.read().decode()
        assert text.endswith("data: [DONE]\n\n")
        said = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in events(text))
        assert said == CYCLE * 60
        assert json.loads(waiting.getresponse().read())["choices"][0]["message"]["content"] == CYCLE * 60
        assert server.process.wait(60) == 0
        assert "Traceback" not in server.output
