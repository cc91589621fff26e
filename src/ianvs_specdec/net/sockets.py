"""Connections that count all bytes and whose waits end: by timeout, by deadline, or interrupted by another thread.

Name resolution has the system's own timeout. TLS runs in memory above the socket, so that handshakes and records are
counted too.
"""

from __future__ import annotations

import io
import socket
import ssl
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

BLOCK = 1 << 16


class DeadlineError(Exception):
    """The deadline of the request has passed."""


class InterruptedRequest(Exception):
    """The client was closed during the request."""


@dataclass
class Traffic:
    """Bytes sent (``up``) and received (``down``)."""

    up: int = 0
    down: int = 0


@dataclass(frozen=True)
class Timeouts:
    """``idle``: seconds without data; ``deadline`` of the whole request (``time.perf_counter``)."""

    idle: float
    deadline: float

    def seconds(self) -> float:
        """Timeout of the next wait. Raises DeadlineError after the deadline."""
        left = self.deadline - time.perf_counter()
        if left <= 0:
            raise DeadlineError("the deadline passed")
        return min(self.idle, left)

    def error(self) -> Exception:
        """The error of a wait that timed out."""
        if time.perf_counter() >= self.deadline:
            return DeadlineError("the deadline passed")
        return TimeoutError(f"no data for {self.idle:g} s")


class Sockets:
    """The open sockets of a client, which another thread can interrupt."""

    def __init__(self) -> None:
        self._interrupted = False
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()

    def check(self) -> None:
        if self._interrupted:
            raise InterruptedRequest("the request was interrupted")

    def interrupt(self) -> None:
        with self._lock:
            self._interrupted = True
            for connection in self._open:
                with suppress(OSError):  # not connected
                    connection.shutdown(socket.SHUT_RDWR)

    def connect(self, address: tuple[str, int], timeouts: Timeouts) -> socket.socket:
        """Raises OSError (including TimeoutError), DeadlineError or InterruptedRequest."""
        try:
            found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)
        except UnicodeError as error:
            raise OSError(f"{address[0]!r} is not a host name") from error
        for left, (family, _, _, _, place) in zip(range(len(found), 0, -1), found, strict=True):
            connection = socket.socket(family, socket.SOCK_STREAM)
            try:
                with self._lock:
                    self.check()
                    self._open.add(connection)
                # Leaves time for the other addresses if packets to this one are dropped.
                connection.settimeout(timeouts.seconds() / left)
                connection.connect(place)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return connection
            except BaseException as error:
                self.close(connection)
                self.check()
                if not isinstance(error, OSError) or left == 1:
                    raise timeouts.error() if isinstance(error, TimeoutError) else error from None
        raise OSError(f"{address[0]} has no address")

    def close(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.discard(connection)
        connection.close()


class Connection:
    """One connection. ``traffic`` and ``timeouts`` are those of its current request."""

    def __init__(self, raw: socket.socket, sockets: Sockets, timeouts: Timeouts, traffic: Traffic) -> None:
        self._socket, self._sockets = raw, sockets
        self.timeouts, self.traffic = timeouts, traffic
        self._tls: ssl.SSLObject | None = None
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()

    def secure(self, context: ssl.SSLContext, host: str) -> None:
        """Start TLS."""
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self._encrypted(self._tls.do_handshake)

    def makefile(self, mode: str) -> io.BufferedReader:
        """What arrives, as ``http.client`` wants it. Closing the file leaves the connection open."""
        return io.BufferedReader(_Reader(self), BLOCK)

    def sendall(self, data: bytes) -> None:
        if self._tls is None:
            self._send(data)
        else:
            view = memoryview(data)
            while view:
                view = view[self._encrypted(self._tls.write, view) :]

    def read(self, size: int) -> bytes:
        """At most ``size`` bytes; b"" at the end."""
        if self._tls is None:
            return self._receive(size)
        try:
            data: bytes = self._encrypted(self._tls.read, size)
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            # Many servers end without a TLS close_notify; a truncated answer is detected in HTTP.
            return b""
        return data

    def alive(self) -> bool:
        """Whether an idle connection is still open."""
        try:
            self._socket.setblocking(False)
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def close(self) -> None:
        self._sockets.close(self._socket)

    def _encrypted(self, action: Any, *arguments: Any) -> Any:
        """Run a TLS operation, moving bytes between its buffers and the socket."""
        while True:
            try:
                result = action(*arguments)
            except ssl.SSLWantReadError:
                self._send(self._outgoing.read())
                data = self._receive(BLOCK)
                self._incoming.write(data) if data else self._incoming.write_eof()
            else:
                self._send(self._outgoing.read())
                return result

    def _send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            sent = self._attempt(self._socket.send, view)
            self.traffic.up += sent
            view = view[sent:]

    def _receive(self, size: int) -> bytes:
        data: bytes = self._attempt(self._socket.recv, size)
        self.traffic.down += len(data)
        if not data:
            self._sockets.check()
        return data

    def _attempt(self, action: Any, argument: Any) -> Any:
        try:
            self._socket.settimeout(self.timeouts.seconds())
            return action(argument)
        except TimeoutError:
            raise self.timeouts.error() from None
        except OSError:
            self._sockets.check()
            raise


class _Reader(io.RawIOBase):
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._connection.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)
