"""The feedback endpoint with hostile clients."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.routing.lifelong import feedback_server
from ianvs_specdec.routing.lifelong.feedback import Feedback, check_feedback
from ianvs_specdec.routing.lifelong.feedback_server import FeedbackServer

THUMB = b'{"query_id": "q", "side": "edge", "thumb": "up"}'


@pytest.fixture
def received() -> list[Feedback]:
    return []


@pytest.fixture
def server(received: list[Feedback]) -> Iterator[FeedbackServer]:
    server = FeedbackServer({"port": 0}, received.append)
    yield server
    server.close()


def address(server: FeedbackServer) -> tuple[str, int]:
    return server._server.server_address[:2]


def status(server: FeedbackServer, body: bytes = THUMB, **headers: str) -> int:
    """The status of a request with these headers; 0 without any reply."""
    host, port = address(server)
    given = {"Host": f"{host}:{port}", "Content-Type": "application/json", "Content-Length": str(len(body)), **headers}
    head = "".join(f"{name}: {value}\r\n" for name, value in given.items() if value)
    reply = b""
    with socket.create_connection((host, port), timeout=30) as client, suppress(ConnectionError):
        client.sendall(f"POST /feedback HTTP/1.1\r\n{head}\r\n".encode() + body)
        while piece := client.recv(4096):
            reply += piece
    return int(reply.split()[1]) if reply else 0


@pytest.mark.parametrize(
    ("host", "origin", "expected"),
    [
        ("localhost:1", "", 202),
        ("[::1]:80", "", 202),
        ("evil.example:80", "http://evil.example:80", 403),
        ("127.0.0.1.evil.example", "", 403),
        ("127.0.0.1@evil.example", "", 403),
        ("192.168.1.5", "", 403),
        ("[", "", 403),
        ("", "", 403),
        ("localhost:1", "null", 403),
        ("localhost:1", "http://localhost:3000", 403),
        ("localhost:1", "http://localhost:1", 202),
    ],
)
def test_only_this_machine_is_accepted(
    server: FeedbackServer, received: list[Feedback], host: str, origin: str, expected: int
) -> None:
    assert status(server, Host=host, Origin=origin) == expected
    assert len(received) == (expected == 202)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "127.0.0.1.example.org"])
def test_another_address_needs_a_token(host: str) -> None:
    with pytest.raises(UserError, match="anybody could send feedback; set token_env") as told:
        check_feedback({"port": 0, "host": host})
    assert told.value.key == "feedback"
    with pytest.raises(UserError, match="token_env"):
        FeedbackServer({"port": 0, "host": host}, lambda _: None)
    check_feedback({"port": 0, "host": host, "token_env": "TOKEN"})
    for ours in ("127.0.0.2", "localhost", "[::1]", ""):
        check_feedback({"port": 0, "host": ours})


def test_with_a_token_any_host_header_is_accepted(monkeypatch: pytest.MonkeyPatch, received: list[Feedback]) -> None:
    monkeypatch.setenv("TOKEN", "secret")
    server = FeedbackServer({"port": 0, "host": "0.0.0.0", "token_env": "TOKEN"}, received.append)
    try:
        assert status(server, Host="machine.example") == 401
        assert status(server, Host="machine.example", Authorization="Bearer secret") == 202
    finally:
        server.close()


def test_slow_and_idle_clients_are_disconnected(monkeypatch: pytest.MonkeyPatch, received: list[Feedback]) -> None:
    monkeypatch.setattr(feedback_server, "SECONDS", 0.2)
    monkeypatch.setattr(feedback_server, "CLIENTS", 4)
    server = FeedbackServer({"port": 0}, received.append)
    clients = [socket.create_connection(address(server), timeout=30) for _ in range(4)]
    stop = threading.Event()

    def drip() -> None:
        while not stop.is_set():
            with suppress(OSError):
                clients[0].sendall(b"P")
            time.sleep(0.01)

    dripping = threading.Thread(target=drip)
    dripping.start()
    try:
        for client in clients:
            with suppress(ConnectionError):
                assert client.recv(1) == b""
        deadline = time.monotonic() + 30
        while status(server) != 202 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert received
    finally:
        stop.set()
        dripping.join()
        for client in clients:
            client.close()
        server.close()
