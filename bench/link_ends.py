"""The two ends of a path for ``bench.link``, each in a process of its own: one that serves, one that measures.

``python -m bench.link_ends serve HOST`` prints its port. ``python -m bench.link_ends measure HOST:PORT SECONDS`` prints
what it measured as JSON. A connection's first byte says what it is for.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any

ECHO, UP, DOWN = b"e", b"u", b"d"
MESSAGE = 40
"""Bytes: about what a draft of a few tokens is."""
PAUSE = 0.02
"""Seconds between two messages: about a token's time."""
BLOCK = bytes(1 << 16)


def main(arguments: list[str]) -> None:
    if arguments[0] == "serve":
        _serve(arguments[1])
    else:
        host, _, port = arguments[1].rpartition(":")
        print(json.dumps(_measure(lambda: _connect(host, int(port)), float(arguments[2]))))


def _serve(host: str) -> None:
    listener = socket.create_server((host, 0), backlog=128)
    print(listener.getsockname()[1], flush=True)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_answer, args=(connection,), daemon=True).start()


def _answer(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with connection, contextlib.suppress(OSError):
        kind, seconds = connection.recv(1), float(connection.recv(8))
        if kind == ECHO:
            while data := connection.recv(MESSAGE):
                connection.sendall(data)
        elif kind == UP:
            connection.sendall(b"%020.6f" % _rate(connection, seconds))
            # Closing with bytes unread would be a reset, which may overtake the answer.
            while connection.recv(1 << 16):
                pass
        else:
            while True:
                connection.sendall(BLOCK)


def _rate(connection: socket.socket, seconds: float) -> float:
    """Bytes a second that come, in the second half of so many seconds: slow start and queues are over by then."""
    connection.recv(1)
    began, early, late = time.monotonic(), 0, 0
    first = last = began
    while (now := time.monotonic()) < began + seconds:
        count = len(connection.recv(1 << 16))
        if now < began + seconds / 2:
            early, first = early + count, now
        else:
            late, last = late + count, time.monotonic()
    return late / (last - first) if last > first else 0.0


def _connect(host: str, port: int) -> socket.socket:
    connection = socket.create_connection((host, port), timeout=60)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _measure(connect: Callable[[], socket.socket], seconds: float) -> dict[str, Any]:
    """Times in seconds, rates in bytes a second. ``stream``: the slowest hundredth of messages
    that do not wait for each other. ``loaded``: a round trip while another connection sends all it can.
    """
    began = time.monotonic()
    with connect() as connection:
        connection.sendall(ECHO + b"%8.3f" % 0 + bytes(MESSAGE))
        _exactly(connection, MESSAGE)
        first = time.monotonic() - began
        trips = _round_trips(connection, seconds)
        stream = _stream(connection, seconds)
        loaded: list[float] = []
        with ThreadPoolExecutor(1) as pool:
            load = pool.submit(_upload, connect, seconds)
            while not load.done():
                loaded += _round_trips(connection, 0.0)
                time.sleep(PAUSE)
        rates = {"up": load.result()}
    with connect() as connection:
        connection.sendall(DOWN + b"%8.3f" % seconds)
        rates["down"] = _rate(connection, seconds)
    trips.sort()
    return {
        "first": first,
        "p50": median(trips),
        "p95": trips[int(0.95 * len(trips))],
        "stream": stream[int(0.99 * len(stream))],
        "loaded": median(loaded[len(loaded) // 2 :]),
        **rates,
    }


def _round_trips(connection: socket.socket, seconds: float) -> list[float]:
    """One at least."""
    trips: list[float] = []
    ends = time.monotonic() + seconds
    while not trips or time.monotonic() < ends:
        began = time.perf_counter()
        connection.sendall(bytes(MESSAGE))
        _exactly(connection, MESSAGE)
        trips.append(time.perf_counter() - began)
        time.sleep(PAUSE if seconds else 0.0)
    return trips


def _stream(connection: socket.socket, seconds: float) -> list[float]:
    """Round trips of messages that are sent whether the last one is back or not, in order of length."""
    count = max(1, int(seconds / PAUSE))
    sent: list[float] = []

    def back() -> list[float]:
        trips = []
        for number in range(count):
            _exactly(connection, MESSAGE)
            trips.append(time.perf_counter() - sent[number])
        return sorted(trips)

    with ThreadPoolExecutor(1) as pool:
        trips = pool.submit(back)
        for _ in range(count):
            sent.append(time.perf_counter())
            connection.sendall(bytes(MESSAGE))
            time.sleep(PAUSE)
        return trips.result()


def _upload(connect: Callable[[], socket.socket], seconds: float) -> float:
    with connect() as connection:
        connection.sendall(UP + b"%8.3f" % seconds)
        connection.setblocking(False)
        while True:
            # The answer comes when the other end has seen enough.
            with contextlib.suppress(BlockingIOError):
                if answer := connection.recv(20):
                    return float(answer)
            with contextlib.suppress(BlockingIOError):
                connection.send(BLOCK)
                continue
            time.sleep(0.001)


def _exactly(connection: socket.socket, count: int) -> None:
    while count:
        piece = connection.recv(count)
        if not piece:
            raise SystemExit("bench.link: the other end has closed")
        count -= len(piece)


if __name__ == "__main__":
    main(sys.argv[1:])
