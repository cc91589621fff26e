"""Connections whose every byte is counted and whose every wait ends: at a deadline, for want of a sign of life, or
because another thread says so.

TLS is done in memory between the caller and the socket, so that what is counted is what passes the socket on every
system: handshakes, records and HTTP framing included, headers of TCP and IP and what TCP repeats not.
"""

from __future__ import annotations

import io
import ipaddress
import socket
import ssl
import threading
import time
from dataclasses import dataclass
from typing import Any

BLOCK = 1 << 16
LOOK_AROUND = 0.1


class DeadlineError(Exception):
    """The time for the whole request is over."""


class InterruptedRequest(Exception):
    """Another thread ended the request."""


@dataclass
class Traffic:
    """Bytes that passed sockets."""

    up: int = 0
    down: int = 0


@dataclass(frozen=True)
class Patience:
    """How long to wait: ``idle`` seconds for a sign of life, and in all until ``deadline`` (``time.perf_counter``)."""

    idle: float
    deadline: float

    def seconds(self) -> float:
        """The longest that the next wait may take. Raises DeadlineError when there is no time left."""
        left = self.deadline - time.perf_counter()
        if left <= 0:
            raise DeadlineError("the deadline passed")
        return min(self.idle, left)

    def over(self) -> Exception:
        """What it means that a wait has taken as long as it may."""
        if time.perf_counter() >= self.deadline:
            return DeadlineError("the deadline passed")
        return TimeoutError(f"no sign of life for {self.idle:g} s")


class Interruption:
    """Ends, once for all, every wait of the connections made with it, whatever thread they wait in."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()

    def set(self) -> None:
        with self._lock:
            self._event.set()
            for connection in self._sockets:
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:
                    # Not connected, or not any more: nobody waits for it.
                    continue

    def check(self) -> None:
        if self._event.is_set():
            raise InterruptedRequest("the request was interrupted")

    def sleep(self, seconds: float) -> None:
        if self._event.wait(max(0.0, seconds)):
            self.check()

    def watch(self, connection: socket.socket) -> None:
        with self._lock:
            self.check()
            self._sockets.add(connection)

    def forget(self, connection: socket.socket) -> None:
        with self._lock:
            self._sockets.discard(connection)


class Wire:
    """One connection. ``traffic`` and ``patience`` are those of the request that it serves at the moment."""

    def __init__(
        self, address: tuple[str, int], patience: Patience, traffic: Traffic, interruption: Interruption
    ) -> None:
        """Connect. Raises OSError, TimeoutError among it, DeadlineError or InterruptedRequest."""
        self.patience, self.traffic, self._interruption = patience, traffic, interruption
        self._tls: ssl.SSLObject | None = None
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        found = _resolve(*address, patience, interruption)
        for index, (family, place) in enumerate(found):
            self._socket = socket.socket(family, socket.SOCK_STREAM)
            try:
                interruption.watch(self._socket)
                # A first address that swallows packets leaves time for the others.
                self._socket.settimeout(patience.seconds() / (len(found) - index))
                self._socket.connect(place)
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                break
            except BaseException as error:
                self.close()
                interruption.check()
                if not isinstance(error, OSError) or index == len(found) - 1:
                    raise patience.over() if isinstance(error, TimeoutError) else error from None

    def secure(self, context: ssl.SSLContext, host: str) -> None:
        """Speak TLS from here on."""
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self._encrypted(self._tls.do_handshake)

    def makefile(self, mode: str) -> io.BufferedReader:
        """What arrives, as ``http.client`` wants it. Closing the file leaves the connection open."""
        return io.BufferedReader(_Reader(self), BLOCK)

    def send(self, data: bytes) -> None:
        if self._tls is None:
            self._put(data)
        else:
            view = memoryview(data)
            while view:
                view = view[self._encrypted(self._tls.write, view) :]

    def receive(self, size: int) -> bytes:
        """At most ``size`` bytes; b"" when the other side has ended."""
        if self._tls is None:
            return self._get(size)
        try:
            data: bytes = self._encrypted(self._tls.read, size)
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            # Many servers end without TLS' own farewell; whether the answer is whole shows in the answer.
            return b""
        return data

    def alive(self) -> bool:
        """Whether the connection, on which nothing is expected, is still open."""
        try:
            self._socket.setblocking(False)
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def close(self) -> None:
        self._interruption.forget(self._socket)
        self._socket.close()

    def _encrypted(self, action: Any, *arguments: Any) -> Any:
        """Do a step of TLS, moving bytes between its memory and the socket as it asks for them."""
        while True:
            try:
                result = action(*arguments)
            except ssl.SSLWantReadError:
                self._put(self._outgoing.read())
                data = self._get(BLOCK)
                self._incoming.write(data) if data else self._incoming.write_eof()
            else:
                self._put(self._outgoing.read())
                return result

    def _put(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            sent = self._attempt(self._socket.send, view)
            self.traffic.up += sent
            view = view[sent:]

    def _get(self, size: int) -> bytes:
        data: bytes = self._attempt(self._socket.recv, size)
        self.traffic.down += len(data)
        if not data:
            self._interruption.check()
        return data

    def _attempt(self, action: Any, argument: Any) -> Any:
        try:
            self._socket.settimeout(self.patience.seconds())
            return action(argument)
        except TimeoutError:
            raise self.patience.over() from None
        except OSError:
            self._interruption.check()
            raise


class _Reader(io.RawIOBase):
    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._wire.receive(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def _resolve(host: str, port: int, patience: Patience, interruption: Interruption) -> list[tuple[int, Any]]:
    """Addresses of a host. Asking for them cannot be interrupted, so a thread that may be left behind does it."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        pass
    else:
        return [(found[0], found[4]) for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    answers: list[list[tuple[int, Any]] | OSError] = []
    answered = threading.Event()

    def ask() -> None:
        try:
            answers.append([(found[0], found[4]) for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)])
        except (OSError, UnicodeError) as error:
            answers.append(error if isinstance(error, OSError) else OSError(f"{host!r} is no name of a host"))
        answered.set()

    threading.Thread(target=ask, name="resolver", daemon=True).start()
    until = time.perf_counter() + patience.seconds()
    while not answered.wait(min(LOOK_AROUND, max(0.0, until - time.perf_counter()))):
        interruption.check()
        if time.perf_counter() >= until:
            raise patience.over()
    if isinstance(answers[0], OSError):
        raise answers[0]
    return answers[0]
