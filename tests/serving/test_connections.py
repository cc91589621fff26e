"""Idle, incomplete and excess connections do not block other clients."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.common.types import Completion, Sampling
from ianvs_specdec.serving import server as server_module
from ianvs_specdec.serving.app import Service, create_app
from ianvs_specdec.serving.engine import RequestQueue
from ianvs_specdec.serving.metrics import Metrics
from tests.support.instant import InstantLLM
from tests.support.servers import make_certificate

from .conftest import LONGEST, Local, wait_until

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}]}).encode()
WHOLE = HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
HALVES = {
    "nothing": b"",
    "half a line": b"GET /hea",
    "half a head": HEAD,
    "half a body": HEAD + b"Content-Length: 200\r\n\r\n{",
    "half a chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\n50\r\n{",
}
"""Incomplete requests."""


class _Waiting(InstantLLM):
    """Answers once ``go`` is set."""

    backend, concurrent = "waiting", True

    def __init__(self) -> None:
        super().__init__("m")
        self.go = threading.Event()
        self.go.set()

    def generate(self, messages: Any, sampling: Any, on_chunk: Any = None, hints: Any = None) -> Completion:
        self.go.wait(LONGEST)
        return super().generate(messages, sampling, on_chunk, hints)


class _Serving(Local):
    def __init__(self, most: int = 1000, tls: Sequence[Path] = ()) -> None:
        metrics, self.llm = Metrics("m", "waiting"), _Waiting()
        self._clients: list[socket.socket] = []
        engine = RequestQueue(self.llm, 1000, 64, metrics)
        service = Service(("m",), Sampling(), "", LONGEST, 1000)
        super().__init__(create_app(service, engine, metrics), engine, most, *tls)

    @property
    def connections(self) -> set[Any]:
        return self.server.server_state.connections

    def connect(self, data: bytes = b"") -> socket.socket:
        connection = socket.create_connection(self.host, timeout=LONGEST)
        self._clients.append(connection)
        connection.sendall(data)
        return connection

    def health(self) -> bytes:
        return ask(self.connect(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"))

    def end(self) -> None:
        self.llm.go.set()
        for connection in self._clients:
            connection.close()
        super().end()


def reply(connection: socket.socket) -> bytes:
    """The next response's body. The connection stays open."""
    response = http.client.HTTPResponse(connection)
    response.begin()
    return response.read()


def ask(connection: socket.socket) -> bytes:
    """All that comes until the server ends the connection."""
    found = b""
    with connection, contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(1 << 16):
            found += piece
    return found


@pytest.fixture
def start(request: pytest.FixtureRequest) -> Callable[..., _Serving]:
    def begin(**options: Any) -> _Serving:
        request.addfinalizer((serving := _Serving(**options)).end)
        return serving

    return begin


@pytest.mark.parametrize("half", HALVES)
def test_incomplete_requests_do_not_block_others(start: Callable[..., _Serving], half: str) -> None:
    server = start(most=20)
    for _ in range(60):
        server.connect(HALVES[half])
    assert b'{"status":"ok"}' in server.health()
    assert b'"content":"yes"' in reply(server.connect(WHOLE))
    wait_until(lambda: len(server.connections) <= 20)


def test_busy_connections_are_kept(start: Callable[..., _Serving]) -> None:
    server = start(most=4)
    server.llm.go.clear()
    asking = [server.connect(WHOLE) for _ in range(4)]
    wait_until(lambda: sum(connection.busy for connection in server.connections) == 4)
    refused = server.health()
    assert refused.startswith(b"HTTP/1.1 503 ")
    assert json.loads(refused.partition(b"\r\n\r\n")[2])["error"]["code"] == "too_many_connections"
    server.llm.go.set()
    for connection in asking:
        with connection:
            assert b'"content":"yes"' in reply(connection)


@pytest.mark.parametrize("half", ["nothing", "half a line", "half a head"])
def test_timeout_of_request_headers(start: Callable[..., _Serving], monkeypatch: pytest.MonkeyPatch, half: str) -> None:
    monkeypatch.setattr(server_module, "HEAD_SECONDS", 0.01)
    server = start()
    first, second = server.connect(HALVES[half]), server.connect(WHOLE)
    assert ask(first) == b""
    # The same on a connection that has had an answer.
    assert b'"content":"yes"' in reply(second)
    if half != "nothing":
        second.sendall(HALVES[half])
        assert ask(second) == b""


def test_timeout_of_tls_handshake(
    start: Callable[..., _Serving], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("ianvs_specdec.serving.server.TLS_HANDSHAKE", 0.5)
    silent = start(tls=make_certificate(tmp_path)).connect()
    # Asyncio's own limit is 60.
    silent.settimeout(30)
    assert ask(silent) == b""


def test_timeouts_of_idle_connection_and_unread_body(
    start: Callable[..., _Serving], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start()
    unread = server.connect(b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999\r\n\r\nabc")
    idle = server.connect(WHOLE)
    assert b'{"status":"ok"}' in reply(unread)
    assert b'"content":"yes"' in reply(idle)
    # What is left of the body has less time than an idle connection.
    unread.settimeout(30)
    assert len(server.connections) == 2
    monkeypatch.setattr(server_module, "HEAD_SECONDS", 0.01)
    assert ask(unread) == b""
    assert len(server.connections) == 1
    monkeypatch.setattr(server_module, "KEEP_ALIVE", 0.01)
    assert ask(idle) == b""


def test_timeout_of_body(start: Callable[..., _Serving], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ianvs_specdec.serving.app.BODY_SECONDS", 0.02)
    assert b"body_too_slow" in reply(start().connect(HALVES["half a body"]))


@pytest.mark.parametrize("version", ["1.1", "1.0"])
def test_request_smuggling_is_rejected(start: Callable[..., _Serving], version: str) -> None:
    server = start()
    both = HEAD.replace(b"1.1", version.encode()) + b"Transfer-Encoding: chunked\r\n"
    both += b"Content-Length: 5\r\n" if version == "1.1" else b"Connection: keep-alive\r\n"
    smuggled = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
    found = ask(server.connect(both + b"\r\n0\r\n\r\n" + smuggled))
    assert found.startswith(b"HTTP/1.1 400 ")
    assert found.count(b"HTTP/1.1 ") == 1
    assert b"connection: close" in found.lower()
    assert json.loads(found.partition(b"\r\n\r\n")[2])["error"]["type"] == "invalid_request_error"
    assert b'"content":"yes"' in reply(server.connect(WHOLE))


FEW_FILES = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
from ianvs_specdec.commands.cli import main
sys.exit(main(["serve", "--port", "0", "--backend", "api", "--model", "m", "--set", "api_base_url=http://127.0.0.1:9/v1"]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("half", ["nothing", "half a body"])
def test_many_connections_with_few_open_files(tmp_path: Path, half: str) -> None:
    pytest.importorskip("resource")
    with (
        (tmp_path / "errors").open("w") as errors,
        subprocess.Popen(
            [sys.executable, "-c", FEW_FILES], stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
        contextlib.ExitStack() as crowd,
    ):
        assert process.stdout is not None
        try:
            port = int(process.stdout.readline().rpartition(":")[2])
            for _ in range(300):
                connection = crowd.enter_context(socket.create_connection(("127.0.0.1", port), timeout=LONGEST))
                connection.sendall(HALVES[half])
            for _ in range(3):
                connection = socket.create_connection(("127.0.0.1", port), timeout=LONGEST)
                connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                assert b'{"status":"ok"}' in ask(connection)
        finally:
            process.kill()
    told = (tmp_path / "errors").read_text()
    assert "at most 128 concurrent connections" in told
    assert "Traceback" not in told
    assert "out of system resource" not in told
