"""Servers behind a link, and clients."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest

from tests.support.servers import Listener, Serve

Opened = Callable[[Serve], str]
PATIENCE = 20.0
"""Seconds after which a test that hangs fails."""


@pytest.fixture
def served() -> Iterator[Opened]:
    """Starts servers; returns their addresses."""
    listeners: list[Listener] = []

    def start(serve: Serve) -> str:
        listeners.append(Listener(serve))
        return f"127.0.0.1:{listeners[-1].port}"

    yield start
    for listener in listeners:
        listener.close()


def echo(connection: socket.socket) -> None:
    while data := connection.recv(1 << 16):
        connection.sendall(data)


def swallow(connection: socket.socket) -> None:
    """Sends the number of received bytes after their end."""
    count = 0
    while data := connection.recv(1 << 20):
        count += len(data)
    connection.sendall(b"%d" % count)


def connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE)


def received(connection: socket.socket, count: int) -> bytes:
    """``count`` bytes, fewer at the end."""
    data = b""
    while len(data) < count and (piece := connection.recv(1 << 16)):
        data += piece
    return data


def asked(address: str, *messages: bytes) -> list[bytes]:
    """The answers to messages on one connection."""
    with connect(address) as connection:
        answers = []
        for message in messages:
            connection.sendall(message)
            answers.append(received(connection, len(message)))
    return answers
