"""The HTTP client on real sockets: bytes as the other side counts them, waits that end, connections used again."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.net.http.client import Client, ProtocolError
from ianvs_specdec.net.http.wire import DeadlineError, InterruptedRequest, Interruption, Patience, Traffic
from tests.support.servers import Listener, Relay, Serve, make_certificate, read_request, response, scripted, secured

Start = Callable[[Serve], Listener]
LONG = 60.0


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


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


def patience(idle: float = LONG, seconds: float = LONG) -> Patience:
    return Patience(idle, time.perf_counter() + seconds)


def ask(client: Client, body: bytes = b"{}", traffic: Traffic | None = None, wait: Patience | None = None) -> bytes:
    with client.post("/v1", body, wait or patience(), traffic or Traffic()) as reply:
        return reply.read_all(1 << 30)


@pytest.mark.parametrize("chunked", [0, 1000])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_bytes_are_those_that_the_other_side_counts(
    start: Start, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, scheme: str, chunked: int
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    serve = scripted(lambda head, body: response(body * 3, chunked=chunked))
    relay = Relay(start(secured(serve, *certificate) if scheme == "https" else serve).port)
    client = Client(f"{scheme}://127.0.0.1:{relay.port}", {"Authorization": "Bearer key"}, Interruption())
    up = down = 0
    for size in (2, 40_000, 200_000):
        traffic = Traffic()
        assert ask(client, b"x" * size, traffic) == b"x" * size * 3
        assert traffic.up > size
        assert traffic.down > 3 * size
        up, down = up + traffic.up, down + traffic.down
        assert (up, down) == (relay.up, relay.down)
    assert relay.accepted == 1, "a connection is used again"
    if scheme == "http":
        assert traffic.up == size + len(
            f"POST /v1 HTTP/1.1\r\nHost: 127.0.0.1:{relay.port}\r\nAuthorization: Bearer key\r\n"
            f"Content-Type: application/json\r\nContent-Length: {size}\r\n\r\n"
        )
    relay.close()


def test_the_handshake_belongs_to_the_request_that_opened_the_connection(
    start: Start, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    listener = start(secured(scripted(lambda head, body: response(b"ok")), *certificate))
    client = Client(f"https://127.0.0.1:{listener.port}", {}, Interruption())
    first, second = Traffic(), Traffic()
    ask(client, traffic=first)
    ask(client, traffic=second)
    assert first.up > second.up + 200
    assert first.down > second.down + certificate[0].stat().st_size // 2


def test_bytes_of_an_attempt_that_fails_count(start: Start) -> None:
    listener = start(scripted(lambda head, body: None))
    traffic = Traffic()
    with pytest.raises(OSError, match="without an answer"):
        ask(Client(f"http://127.0.0.1:{listener.port}", {}, Interruption()), b"x" * 5000, traffic)
    assert traffic.up > 5000


def test_a_certificate_that_nobody_vouches_for_is_refused(start: Start, certificate: tuple[Path, Path]) -> None:
    listener = start(secured(scripted(lambda head, body: response(b"ok")), *certificate))
    with pytest.raises(OSError, match="certificate verify failed"):
        ask(Client(f"https://127.0.0.1:{listener.port}", {}, Interruption()))


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"SSH-2.0-nothing\r\n", id="another protocol"),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", id="cut in a chunk"),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", id="no length of a chunk"),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n", id="no last chunk"),
    ],
)
def test_what_is_not_http_is_told(start: Start, answer: bytes) -> None:
    def serve(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(answer)

    with pytest.raises(ProtocolError):
        ask(Client(f"http://127.0.0.1:{start(serve).port}", {}, Interruption()))


def test_a_connection_that_the_server_has_closed_is_not_used_again(start: Start) -> None:
    ended = threading.Event()

    def serve(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(response(b"ok"))
        connection.close()
        ended.set()

    listener = start(serve)
    client = Client(f"http://127.0.0.1:{listener.port}", {}, Interruption())
    for _ in range(3):
        ended.clear()
        assert ask(client) == b"ok"
        assert ended.wait(LONG)
        time.sleep(0.02)
    assert listener.accepted == 3


def test_a_reply_left_unread_closes_its_connection(start: Start) -> None:
    listener = start(scripted(lambda head, body: response(b"x" * 100_000)))
    client = Client(f"http://127.0.0.1:{listener.port}", {}, Interruption())
    with pytest.raises(RuntimeError), client.post("/v1", b"{}", patience(), Traffic()):
        raise RuntimeError
    assert ask(client) == b"x" * 100_000
    assert listener.accepted == 2


def test_a_connection_that_the_server_will_close_is_not_used_again(start: Start) -> None:
    listener = start(scripted(lambda head, body: response(b"ok", headers="Connection: close\r\n")))
    client = Client(f"http://127.0.0.1:{listener.port}", {}, Interruption())
    assert [ask(client), ask(client)] == [b"ok", b"ok"]
    assert listener.accepted == 2


def test_a_connection_with_an_unfinished_answer_is_not_used_again(start: Start) -> None:
    answers = [b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", response(b"ok")]
    listener = start(scripted(lambda head, body: answers.pop(0)))
    client = Client(f"http://127.0.0.1:{listener.port}", {}, Interruption())
    with client.post("/v1", b"{}", patience(), Traffic()) as reply:
        assert reply.read() == b"abc"
    assert ask(client) == b"ok"
    assert listener.accepted == 2


@pytest.mark.parametrize("where", ["before the head", "in the middle"])
@pytest.mark.parametrize("end", ["no sign of life", "deadline"])
def test_silence_ends(start: Start, where: str, end: str) -> None:
    released = threading.Event()

    def serve(connection: socket.socket) -> None:
        read_request(connection)
        if where == "in the middle":
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc")
        released.wait(LONG)

    client = Client(f"http://127.0.0.1:{start(serve).port}", {}, Interruption())
    wait = patience(idle=0.2) if end == "no sign of life" else patience(seconds=0.2)
    with pytest.raises(TimeoutError if end == "no sign of life" else DeadlineError):
        ask(client, wait=wait)
    released.set()


def test_a_server_that_never_stops_talking_ends_at_the_deadline(start: Start) -> None:
    def serve(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in itertools.count():
            connection.sendall(b"1\r\nx\r\n")

    with pytest.raises(DeadlineError):
        ask(Client(f"http://127.0.0.1:{start(serve).port}", {}, Interruption()), wait=patience(seconds=0.3))


def test_a_request_that_nobody_reads_ends(start: Start) -> None:
    released = threading.Event()
    listener = start(lambda connection: void(released.wait(LONG)))
    with pytest.raises(TimeoutError):
        ask(Client(f"http://127.0.0.1:{listener.port}", {}, Interruption()), b"x" * 50_000_000, wait=patience(idle=0.3))
    released.set()


def void(value: object) -> None:
    """For a function that is to return nothing."""


def full_server() -> tuple[socket.socket, list[socket.socket]]:
    """A port where connecting hangs: nobody accepts, and no more may wait."""
    server = socket.create_server(("127.0.0.1", 0), backlog=0)
    waiting = []
    for _ in range(4):
        waiting.append(socket.socket())
        waiting[-1].setblocking(False)
        waiting[-1].connect_ex(server.getsockname())
    return server, waiting


def test_connecting_ends() -> None:
    server, waiting = full_server()
    with pytest.raises((TimeoutError, DeadlineError)):
        ask(Client(f"http://127.0.0.1:{server.getsockname()[1]}", {}, Interruption()), wait=patience(idle=0.2))
    for connection in (server, *waiting):
        connection.close()


@pytest.mark.parametrize("moment", ["connecting", "waiting for the head", "in the middle"])
def test_another_thread_can_end_a_request(start: Start, moment: str) -> None:
    reached, released = threading.Event(), threading.Event()

    def serve(connection: socket.socket) -> None:
        read_request(connection)
        if moment == "in the middle":
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc")
        reached.set()
        released.wait(LONG)

    server, waiting = full_server()
    port = server.getsockname()[1] if moment == "connecting" else start(serve).port
    interruption = Interruption()
    outcome: list[type[BaseException]] = []

    def run() -> None:
        try:
            ask(Client(f"http://127.0.0.1:{port}", {}, interruption))
        except BaseException as error:
            outcome.append(type(error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    reached.wait(0.3 if moment == "connecting" else LONG)
    interruption.set()
    thread.join(LONG)
    released.set()
    assert outcome == [InterruptedRequest]
    for connection in (server, *waiting):
        connection.close()


def test_nothing_begins_after_an_interruption(start: Start) -> None:
    listener = start(scripted(lambda head, body: response(b"ok")))
    interruption = Interruption()
    client = Client(f"http://127.0.0.1:{listener.port}", {}, interruption)
    ask(client)
    interruption.set()
    with pytest.raises(InterruptedRequest):
        ask(client)


def test_a_host_that_has_no_address_is_told() -> None:
    with pytest.raises(socket.gaierror):
        ask(Client("http://no-such-host.invalid", {}, Interruption()))
    with pytest.raises(OSError, match="no name of a host"):
        ask(Client(f"http://{'x' * 80}.invalid", {}, Interruption()))


def test_a_name_is_resolved(start: Start) -> None:
    listener = start(scripted(lambda head, body: response(head.splitlines()[1].encode())))
    port = listener.port
    assert ask(Client(f"http://localhost:{port}", {}, Interruption())) == f"Host: localhost:{port}".encode()


def test_a_proxy_of_the_environment_is_asked(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = start(scripted(lambda head, body: response(head.encode())))
    monkeypatch.setenv("http_proxy", f"http://me:pass@127.0.0.1:{proxy.port}")
    head = ask(Client("http://far.invalid/ignored", {}, Interruption())).decode().splitlines()
    assert ask(Client(f"http://localhost:{proxy.port}", {}, Interruption())).startswith(b"POST /v1 "), (
        "never on the way"
    )
    assert head[0] == "POST http://far.invalid/v1 HTTP/1.1"
    assert "Proxy-Authorization: Basic bWU6cGFzcw==" in head
    monkeypatch.setenv("no_proxy", "far.invalid")
    with pytest.raises(socket.gaierror):
        ask(Client("http://far.invalid", {}, Interruption()))
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("http_proxy", "socks5://127.0.0.1:1")
    with pytest.raises(UserError, match="socks5 proxy"):
        Client("http://far.invalid", {}, Interruption())


def test_tls_goes_through_a_proxy(
    start: Start, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    server = start(secured(scripted(lambda head, body: response(b"through")), *certificate))
    asked: list[str] = []

    def serve(connection: socket.socket) -> None:
        head, _ = read_request(connection) or ("", b"")
        asked.append(head.splitlines()[0])
        connection.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        relay._relay(connection)

    relay = Relay(server.port)
    proxy = start(serve)
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy.port}")
    assert ask(Client("https://far.invalid:4433", {}, Interruption())) == b"through"
    assert asked == ["CONNECT far.invalid:4433 HTTP/1.1"]
    refusing = start(scripted(lambda head, body: response(b"", status="403 Forbidden")))
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{refusing.port}")
    with pytest.raises(OSError, match="answered 403"):
        ask(Client("https://far.invalid:4433", {}, Interruption()))
    relay.close()
