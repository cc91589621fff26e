"""The link between real sockets: data, closing, bandwidth, outages, the record."""

from __future__ import annotations

import json
import pathlib
import socket
import threading
import time
from random import Random

import pytest

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.net.link import Path
from ianvs_specdec.net.link.link import Link
from tests.net.link.conftest import PATIENCE, Opened, asked, connect, echo, received, swallow

ROUGH = Path(delay=0.002, jitter=0.002, up=80e6, down=160e6, loss=0.01, seed=1)
LONG = b"x" * 1_000_000


@pytest.mark.parametrize("path", [Path(), ROUGH], ids=["none", "rough"])
def test_data_is_unchanged(path: Path, served: Opened) -> None:
    data = Random(1).randbytes(700_000)
    with Link(served(echo), path) as link, connect(link.address) as client:
        threading.Thread(target=client.sendall, args=(data,), daemon=True).start()
        assert received(client, len(data)) == data


def test_round_trips(served: Opened) -> None:
    began = time.monotonic()
    with Link(served(echo), Path(delay=0.02)) as link, connect(link.address) as client:
        for least in (0.08, 0.04, 0.04):
            client.sendall(b"more")
            received(client, 4)
            assert time.monotonic() - began >= least
            began = time.monotonic()


def test_half_close(served: Opened) -> None:
    with Link(served(swallow), ROUGH) as link, connect(link.address) as client:
        client.sendall(b"x" * 50_000)
        client.shutdown(socket.SHUT_WR)
        assert received(client, 100) == b"50000"
        assert client.recv(1) == b""


def test_reset_reaches_client(served: Opened) -> None:
    def refuse(connection: socket.socket) -> None:
        connection.recv(1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    with Link(served(refuse), Path(delay=0.005)) as link, connect(link.address) as client:
        client.sendall(b"x")
        with pytest.raises(ConnectionResetError):
            client.recv(1)


def test_reset_reaches_server(served: Opened) -> None:
    seen: list[BaseException | None] = []
    told = threading.Event()

    def wait(connection: socket.socket) -> None:
        connection.sendall(connection.recv(10))
        try:
            connection.recv(1)
            seen.append(None)
        except OSError as error:
            seen.append(error)
        told.set()

    with Link(served(wait), Path(delay=0.005)) as link:
        client = connect(link.address)
        client.sendall(b"x")
        received(client, 1)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        client.close()
        assert told.wait(PATIENCE)
    assert isinstance(seen[0], ConnectionResetError)


def test_unread_data_is_bounded(served: Opened) -> None:
    """What the link took from the server is what two sockets and a first window hold, not what the server has."""

    def pour(connection: socket.socket) -> None:
        while True:
            connection.sendall(LONG)

    with Link(served(pour), Path(delay=0.001)) as link, connect(link.address) as client:
        client.sendall(b"x")
        before = -1
        while (taken := link.summary()["down"]["bytes"]) > before:
            before = taken
            time.sleep(0.2)
        assert 0 < taken < 16_000_000
        # When it does read, nothing is missing.
        assert received(client, len(LONG))[: len(LONG)] == LONG


def test_connections_share_bandwidth(served: Opened) -> None:
    """Two send as much as they can: when one is through, the other nearly is."""
    size, ends, connected = 500_000, [], threading.Barrier(2)

    def send(address: str) -> None:
        with connect(address) as client:
            connected.wait(PATIENCE)
            client.sendall(b"x" * size)
            client.shutdown(socket.SHUT_WR)
            assert received(client, 100) == b"%d" % size
            ends.append(time.monotonic())

    with Link(served(swallow), Path(up=8e6)) as link:
        began = time.monotonic()
        threads = [threading.Thread(target=send, args=(link.address,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        delays = link.summary()["up"]["delay_ms"]
    took = [end - began for end in ends]
    assert max(took) >= 2 * size * 8 / 8e6
    # Half of it if one had the line for itself.
    assert min(took) > 0.7 * max(took)
    assert delays["mean"] <= 110, "the queue is longer than its bound"


def test_outage_holds_data(served: Opened) -> None:
    with Link(served(echo), Path(delay=0.001)) as link, connect(link.address) as client:
        client.sendall(b"a")
        received(client, 1)
        began = time.monotonic()
        link.outage(0.3)
        client.sendall(b"b")
        assert received(client, 1) == b"b"
        assert time.monotonic() - began >= 0.3


def test_outage_cuts_connections(served: Opened) -> None:
    path = Path.parse({"outage": "200ms@200ms", "on_outage": "cut"})
    began = time.monotonic()
    with Link(served(echo), path) as link, connect(link.address) as client:
        client.sendall(b"a")
        received(client, 1)
        with pytest.raises(ConnectionResetError):
            client.recv(1)
        assert asked(link.address, b"again") == [b"again"]
        assert time.monotonic() - began >= 0.4


def test_unreachable_target(served: Opened) -> None:
    told: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as gone:
        nobody = gone.getsockname()[1]
    with Link(f"127.0.0.1:{nobody}", warn=told.append) as link:
        for _ in range(2):
            # The reset may be faster than connect().
            with pytest.raises(ConnectionResetError), connect(link.address) as client:
                client.recv(1)
        assert told == [f"127.0.0.1:{nobody} cannot be reached: Connection refused; the link continues"]
        with socket.create_server(("127.0.0.1", nobody)) as come, connect(link.address) as client:
            server, _ = come.accept()
            with server:
                client.sendall(b"x")
                assert server.recv(1) == b"x"


def test_record(served: Opened, tmp_path: pathlib.Path) -> None:
    record = tmp_path / "link.jsonl"
    path = Path(delay=0.002, outage=Path.parse({"outage": "1ms@1ms"}).outage)
    with Link(served(echo), path, record=record) as link:
        asked(link.address, b"x" * 1000, b"y" * 2000)
        connect(link.address).close()
        last = connect(link.address)
        last.sendall(b"z")
        received(last, 1)
    last.close()
    head, *rows, summary = [json.loads(line) for line in record.read_text().splitlines()]
    assert head["link"]["delay"] == 0.002
    assert head["link"]["outage"] == "0.001s@0.001s"
    first = next(row for row in rows if row["connection"] == 0)
    assert (first["up"]["bytes"], first["down"]["bytes"], first["end"]) == (3000, 3000, "closed")
    # One segment, two, and one that ends each direction.
    assert (first["up"]["segments"], first["down"]["segments"] >= 4) == (4, True)
    assert first["up"]["delay_ms"]["mean"] >= 2
    assert rows[-1]["end"] == "stopped"
    assert summary["summary"]["connections"] == 3
    assert summary["summary"]["up"]["bytes"] == 3001
    assert summary["summary"]["outages"] == [[0.001, 0.002]]


def test_record_on_full_disk(served: Opened) -> None:
    """The connections do not suffer from a full disk."""
    answers = []

    def use() -> None:
        with Link(served(echo), record=pathlib.Path("/dev/full")) as link:
            answers.extend([*asked(link.address, b"one"), *asked(link.address, b"two")])

    with pytest.raises(OSError, match="No space left"):
        use()
    assert answers == [b"one", b"two"]


@pytest.mark.parametrize("text", ["8000", "127.0.0.1:0", "127.0.0.1:http", "." * 9 + ":80"])
def test_target_needs_port(text: str) -> None:
    with pytest.raises(UserError, match=r"--to must be written as 127\.0\.0\.1:8000"):
        Link(text)
