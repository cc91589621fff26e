"""The server process: socket, connection limits and timeouts, graceful shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import signal
import socket
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import h11
import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from ianvs_specdec.net.addresses import format_address
from ianvs_specdec.serving.engine import EngineClient

KEEP_ALIVE = 75
"""Seconds that an idle connection stays open: longer than clients keep theirs, so that none is closed under a request.
"""
HEAD_SECONDS = 10.0
"""For the head of a request, from the opening of the connection or the head's first byte, and for what is left of a
body that is not read."""
FAREWELL_SECONDS = 10.0
"""For reading what was still under way to a client when its connection was closed."""
RESERVED_FILES = 128
"""File descriptors that are not for clients: the model's files, an API's connections, those just being accepted."""
FEWEST_CONNECTIONS = 16
ACCEPTED_AT_ONCE = 16
"""Connections that are accepted before those already there are looked at."""
WAITING_TO_BE_ACCEPTED = 1024
ONE_TOO_MANY = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\nConnection: close\r\n\r\n"
    b'{"error": {"message": "this server has as many connections as it may (--connections)", "type": "server_error", '
    b'"param": null, "code": "too_many_connections"}}'
)


def max_connections(wanted: int) -> int:
    """How many of ``wanted`` connections the system lets this process have; its limit is raised as far as it may be."""
    try:
        import resource
    except ImportError:
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = wanted + RESERVED_FILES
    if soft == resource.RLIM_INFINITY or soft >= need:
        return wanted
    more = need if hard == resource.RLIM_INFINITY else min(need, hard)
    # Some systems have a lower limit of their own.
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (more, hard))
        soft = more
    return min(wanted, max(FEWEST_CONNECTIONS, soft - RESERVED_FILES))


class Connection(H11Protocol):
    """One connection. ``most`` is set by the server: how many there may be."""

    most = 1000

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._waits_since: float | None = time.monotonic()
        self._idle_since: float | None = None
        self._closing_since: float | None = None
        if len(self.connections) > self.most and not self._make_room():
            transport.write(ONE_TOO_MANY)
            transport.close()

    def data_received(self, data: bytes) -> None:
        if not self._answering and self._waits_since is None:
            self._waits_since = time.monotonic()
        super().data_received(data)
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._waits_since = None

    def on_response_complete(self) -> None:
        # Where the next request has come already, it is begun in here.
        self._idle_since = time.monotonic()
        self._waits_since = self._idle_since if self.conn.their_state is h11.SEND_BODY else None
        super().on_response_complete()

    @property
    def _answering(self) -> bool:
        """Whether the application has a request, of which it awaits the body and its own deadline."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def busy(self) -> bool:
        """Whether there is a whole request to answer."""
        return self._answering and self._waits_since is None

    @property
    def since(self) -> float:
        """From when on nothing has been done here."""
        return self._waits_since or self._idle_since or 0.0

    def _make_room(self) -> bool:
        """End the connection on which nothing has been done for the longest time; whether there was one."""
        others: Collection[Any] = self.connections
        free = [other for other in others if other is not self and not other.busy]
        if not free:
            return False
        min(free, key=lambda other: other.since).end()
        return True

    def end(self) -> None:
        """At once, whatever is under way."""
        self.connections.discard(self)
        self.transport.abort()

    def look(self, now: float) -> None:
        """End the connection if its time is over."""
        if self.transport.is_closing():
            self._closing_since = self._closing_since or now
            if now - self._closing_since > FAREWELL_SECONDS:
                self.end()
        elif not self._answering:
            waits, idle = self._waits_since, self._idle_since
            late = waits is not None and now - waits > HEAD_SECONDS
            if late or (waits is None and idle is not None and now - idle > KEEP_ALIVE):
                self.end()


def look_at(connections: Collection[Any], now: float) -> None:
    """End the connections whose time is over."""
    for connection in list(connections):
        connection.look(now)


LOOKED_AT = 5
"""Ticks of a tenth of a second between two looks at the connections."""
HANDSHAKE = 10.0
"""Seconds for that of TLS."""
LAST_WORDS = 5
"""Seconds for telling the clients of requests that were given up."""


def url_of(bound: socket.socket, scheme: str = "http") -> str:
    host, port = bound.getsockname()[:2]
    return f"{scheme}://{format_address(host, port)}"


def server_of(
    app: Starlette,
    engine: EngineClient,
    bound: socket.socket,
    grace: float,
    most: int,
    certificate: Path | None = None,
    key: Path | None = None,
) -> uvicorn.Server:
    """The server on a bound socket, with ``most`` connections at a time. It ends as ``serve`` says. ``certificate`` and
    ``key``: PEM files, for TLS.
    """
    config = uvicorn.Config(
        app,
        http=type("Connection", (Connection,), {"most": most}),
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        backlog=ACCEPTED_AT_ONCE,
        timeout_graceful_shutdown=int(grace) + LAST_WORDS,
        ssl_certfile=certificate,
        ssl_keyfile=key,
    )
    return _Server(config, engine, url_of(bound, "https" if certificate else "http"), grace)


def serve(
    app: Starlette, engine: EngineClient, bound: socket.socket, grace: float, most: int, *tls: Path | None
) -> None:
    """Serve until SIGTERM or SIGINT; then finish what was accepted within ``grace`` seconds, and let nothing new in.
    ``tls``: certificate and key, see ``server_of``.
    """
    server = server_of(app, engine, bound, grace, most, *tls)
    # The server raises the signals that ended it again when it is done; then they have had their effect.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    try:
        server.run([bound])
    finally:
        engine.close()


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, engine: EngineClient, url: str, grace: float) -> None:
        super().__init__(config)
        self._engine, self._url, self._grace = engine, url, grace

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self.config.ssl is not None:
            # Uvicorn has no option for it.
            loop = asyncio.get_running_loop()
            create = functools.partial(loop.create_server, ssl_handshake_timeout=HANDSHAKE)
            loop.create_server = create  # type: ignore[method-assign]
        await super().startup(sockets)
        for bound in sockets or ():
            # Accepting few at once is no reason to let others wait outside.
            bound.listen(WAITING_TO_BE_ACCEPTED)
        print(f"listening on {self._url}", flush=True)

    async def on_tick(self, counter: int) -> bool:
        if counter % LOOKED_AT == 0:
            look_at(self.server_state.connections, time.monotonic())
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._engine.draining = True
        timer = asyncio.get_running_loop().call_later(self._grace, self._engine.end_all)
        await super().shutdown(sockets)
        timer.cancel()
        self._engine.end_all()

    def handle_exit(self, sig: int, frame: Any) -> None:
        # A second signal of either kind: at once.
        self.force_exit = self.should_exit
        super().handle_exit(sig, frame)
