"""The HTTP client on real sockets: byte counts, timeouts, reused connections, proxies."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.net.http import Client, ProtocolError
from ianvs_specdec.net.sockets import DeadlineError, InterruptedRequest, Timeouts, Traffic
from tests.support.clients import closing_clients
from tests.support.servers import Listener, Relay, Serve, make_certificate, read_request, response, scripted, secured

Start = Callable[[Serve], Listener]
LONG = 60.0
HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture(autouse=True)
def closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    with closing_clients(monkeypatch):
        yield


@pytest.fixture
def start() -> Iterator[Start]:
    listeners: list[Listener] = []

    def listen(serve: Serve) -> Listener:
        listeners.append(Listener(serve))
        return listeners[-1]

    yield listen
    for listener in listeners:
        listener.close()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    try:
        return make_certificate(tmp_path_factory.mktemp("certificate"))
    except FileNotFoundError:
        pytest.skip("openssl, which makes the certificate, is not installed")


def patience(idle: float = LONG, seconds: float = LONG) -> Timeouts:
    return Timeouts(idle, time.perf_counter() + seconds)


def client_of(server: Listener | int, scheme: str = "http") -> Client:
    port = server if isinstance(server, int) else server.port
    return Client(f"{scheme}://127.0.0.1:{port}", {"Authorization": "Bearer key"})


def ask(client: Client, body: bytes = b"{}", traffic: Traffic | None = None, wait: Timeouts | None = None) -> bytes:
    with client.post("/v1", body, wait or patience(), traffic or Traffic()) as reply:
        return reply.read_all(1 << 30)


def after_request(*parts: bytes, then: Callable[[], object] = int) -> Serve:
    """Reads a request, sends ``parts``, and calls ``then`` before the connection is closed."""

    def serve(connection: socket.socket) -> None:
        read_request(connection)
        for part in parts:
            connection.sendall(part)
        then()

    return serve


@pytest.mark.parametrize(("scheme", "chunked"), [("http", 1000), ("https", 0)])
def test_byte_counts(
    start: Start, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, scheme: str, chunked: int
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    serve = scripted(lambda head, body: response(body * 3, chunked=chunked))
    relay = Relay(start(secured(serve, *certificate) if scheme == "https" else serve).port)
    client = client_of(relay, scheme)
    counts = []
    for size in (2, 2, 40_000, 200_000):
        counts.append(traffic := Traffic())
        assert ask(client, b"x" * size, traffic) == b"x" * size * 3
        assert traffic.up > size
        assert traffic.down > 3 * size
        assert (relay.up, relay.down) == (sum(each.up for each in counts), sum(each.down for each in counts))
    assert relay.accepted == 1, "a connection is used again"
    if scheme == "http":
        assert traffic.up == size + len(
            f"POST /v1 HTTP/1.1\r\nHost: 127.0.0.1:{relay.port}\r\nAuthorization: Bearer key\r\n"
            f"Content-Type: application/json\r\nContent-Length: {size}\r\n\r\n"
        )
    else:
        assert counts[0].up > counts[1].up + 200, "the handshake belongs to the first request"
    relay.close()


def test_untrusted_certificate(start: Start, certificate: tuple[Path, Path]) -> None:
    listener = start(secured(scripted(lambda head, body: response(b"ok")), *certificate))
    with pytest.raises(OSError, match="certificate verify failed"):
        ask(client_of(listener, "https"))


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"SSH-2.0-nothing\r\n", id="another protocol"),
        pytest.param(CHUNKED + b"5\r\nab", id="cut in a chunk"),
        pytest.param(CHUNKED + b"2\r\nab\r\n", id="no last chunk"),
    ],
)
def test_invalid_http(start: Start, answer: bytes) -> None:
    with pytest.raises(ProtocolError):
        ask(client_of(start(after_request(answer))))


@pytest.mark.parametrize(
    ("first", "whole"),
    [
        pytest.param(after_request(response(b"ok")), True, id="closed by the server"),
        pytest.param(scripted(lambda *_: response(b"ok", headers="Connection: close\r\n")), True, id="will be closed"),
        pytest.param(scripted(lambda *_: HEAD), False, id="not whole"),
    ],
)
def test_closed_connection_is_not_reused(start: Start, first: Serve, whole: bool) -> None:
    serves = [first, scripted(lambda head, body: response(b"second"))]
    listener = start(lambda connection: serves.pop(0)(connection))
    client = client_of(listener)
    if whole:
        assert ask(client) == b"ok"
        time.sleep(0.05)
    else:
        with pytest.raises(RuntimeError), client.post("/v1", b"{}", patience(), Traffic()):
            raise RuntimeError
    assert ask(client) == b"second"
    assert listener.accepted == 2


def hang() -> None:
    threading.Event().wait(5.0)


def talk(connection: socket.socket) -> None:
    read_request(connection)
    connection.sendall(CHUNKED)
    for _ in itertools.count():
        connection.sendall(b"1\r\nx\r\n")


@pytest.mark.parametrize(
    ("serve", "size", "end", "error"),
    [
        pytest.param(after_request(then=hang), 2, "idle", TimeoutError, id="no head"),
        pytest.param(after_request(HEAD, then=hang), 2, "seconds", DeadlineError, id="half a body"),
        pytest.param(talk, 2, "seconds", DeadlineError, id="endless talk"),
        pytest.param(lambda connection: hang(), 50_000_000, "idle", TimeoutError, id="the request is not read"),
    ],
)
def test_timeouts(start: Start, serve: Serve, size: int, end: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        ask(client_of(start(serve)), b"x" * size, wait=patience(**{end: 0.3}))


@pytest.fixture
def full() -> Iterator[int]:
    """A port where connecting hangs: the queue of connections is full."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        waiting = [socket.socket() for _ in range(4)]
        for connection in waiting:
            connection.setblocking(False)
            connection.connect_ex(server.getsockname())
        yield server.getsockname()[1]
        for connection in waiting:
            connection.close()


def test_connect_timeout(full: int) -> None:
    with pytest.raises((TimeoutError, DeadlineError)):
        ask(client_of(full), wait=patience(idle=0.2))


@pytest.mark.parametrize("moment", ["connecting", "waiting for the head", "in the middle"])
def test_close_interrupts_other_threads(start: Start, full: int, moment: str) -> None:
    reached, released = threading.Event(), threading.Event()
    sent = (HEAD,) if moment == "in the middle" else ()
    serve = after_request(*sent, then=lambda: (reached.set(), released.wait(LONG)))
    client = client_of(full if moment == "connecting" else start(serve))
    outcome: list[type[BaseException]] = []

    def run() -> None:
        try:
            ask(client)
        except BaseException as error:
            outcome.append(type(error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    reached.wait(0.3 if moment == "connecting" else LONG)
    client.close()
    thread.join(LONG)
    released.set()
    assert outcome == [InterruptedRequest]
    with pytest.raises(InterruptedRequest):
        ask(client)


def test_name_resolution(start: Start) -> None:
    port = start(scripted(lambda head, body: response(head.splitlines()[1].encode()))).port
    assert ask(Client(f"http://localhost:{port}", {})) == f"Host: localhost:{port}".encode()
    with pytest.raises(socket.gaierror):
        ask(Client("http://no-such-host.invalid", {}))
    with pytest.raises(OSError, match="is not a host name"):
        ask(Client(f"http://{'x' * 80}.invalid", {}))


def test_proxy_from_environment(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = start(scripted(lambda head, body: response(head.encode())))
    monkeypatch.setenv("http_proxy", f"http://me:pass@127.0.0.1:{proxy.port}")
    head = ask(Client("http://far.invalid/ignored", {})).decode().splitlines()
    assert head[0] == "POST http://far.invalid/v1 HTTP/1.1"
    assert "Proxy-Authorization: Basic bWU6cGFzcw==" in head
    assert ask(Client(f"http://localhost:{proxy.port}", {})).startswith(b"POST /v1 "), "never for this machine"
    monkeypatch.setenv("no_proxy", "far.invalid")
    with pytest.raises(socket.gaierror):
        ask(Client("http://far.invalid", {}))
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("http_proxy", "socks5://127.0.0.1:1")
    with pytest.raises(UserError, match="socks5 proxy"):
        Client("http://far.invalid", {})


def test_tls_through_proxy(start: Start, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    relay = Relay(start(secured(scripted(lambda head, body: response(b"through")), *certificate)).port)
    asked: list[str] = []

    def serve(connection: socket.socket) -> None:
        head, _ = read_request(connection) or ("", b"")
        asked.append(head.splitlines()[0])
        connection.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        relay._relay(connection)

    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{start(serve).port}")
    assert ask(Client("https://far.invalid:4433", {})) == b"through"
    assert asked == ["CONNECT far.invalid:4433 HTTP/1.1"]
    refusing = start(scripted(lambda head, body: response(b"", status="403 Forbidden")))
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{refusing.port}")
    with pytest.raises(OSError, match="answered 403"):
        ask(Client("https://far.invalid:4433", {}))
    relay.close()
