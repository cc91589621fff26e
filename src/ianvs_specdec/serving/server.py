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
"""Seconds that an idle connection stays open: longer than clients keep theirs, to avoid races with new requests."""
HEAD_SECONDS = 10.0
"""Timeout for the headers of a request, and for the rest of a body that is not read."""
CLOSING_SECONDS = 10.0
"""Timeout for sending pending data after a connection was closed."""
TLS_HANDSHAKE = 10.0
RESERVED_FILES = 128
"""File descriptors that are not for clients: model files, connections to an API, connections being accepted."""
MIN_CONNECTIONS = 16
ACCEPTED_AT_ONCE = 16
"""Connections accepted before existing ones are served."""
LISTEN_BACKLOG = 1024
CHECK_TICKS = 5
"""Ticks (0.1 s) between two checks of all connections."""
FINAL_SECONDS = 5
"""Time for sending errors to the clients of cancelled requests."""
TOO_MANY_CONNECTIONS = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\nConnection: close\r\n\r\n"
    b'{"error": {"message": "this server has its maximum of connections (--connections)", "type": "server_error", '
    b'"param": null, "code": "too_many_connections"}}'
)


def max_connections(wanted: int) -> int:
    """How many connections the limit of open files allows, which is raised if possible; at most ``wanted``."""
    try:
        import resource
    except ImportError:
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = wanted + RESERVED_FILES
    if soft == resource.RLIM_INFINITY or soft >= need:
        return wanted
    more = need if hard == resource.RLIM_INFINITY else min(need, hard)
    # Some systems have another, lower limit.
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (more, hard))
        soft = more
    return min(wanted, max(MIN_CONNECTIONS, soft - RESERVED_FILES))


class Connection(H11Protocol):
    """One connection, which is closed on timeouts. ``limit``: maximum number of connections."""

    limit = 1000

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._waits_since: float | None = time.monotonic()
        """Since when a request is incomplete; None if it is complete or none has begun."""
        self._idle_since: float | None = None
        self._closing_since: float | None = None
        if len(self.connections) > self.limit and not self._make_room():
            transport.write(TOO_MANY_CONNECTIONS)
            transport.close()

    def data_received(self, data: bytes) -> None:
        if not self._in_progress and self._waits_since is None:
            self._waits_since = time.monotonic()
        super().data_received(data)
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._waits_since = None

    def on_response_complete(self) -> None:
        # Before the call, which starts a pipelined request.
        self._idle_since = time.monotonic()
        self._waits_since = self._idle_since if self.conn.their_state is h11.SEND_BODY else None
        super().on_response_complete()

    @property
    def _in_progress(self) -> bool:
        """Whether the application, which has its own timeouts, has a request."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def busy(self) -> bool:
        """Whether a complete request is in progress."""
        return self._in_progress and self._waits_since is None

    @property
    def inactive_since(self) -> float:
        return self._waits_since or self._idle_since or 0.0

    def _make_room(self) -> bool:
        """Close the connection that has been inactive longest. Returns False if all are busy."""
        others: Collection[Any] = self.connections
        free = [other for other in others if other is not self and not other.busy]
        if not free:
            return False
        min(free, key=lambda other: other.inactive_since).abort()
        return True

    def abort(self) -> None:
        self.connections.discard(self)
        self.transport.abort()

    def check_timeouts(self, now: float) -> None:
        if self.transport.is_closing():
            self._closing_since = self._closing_since or now
            if now - self._closing_since > CLOSING_SECONDS:
                self.abort()
        elif not self._in_progress:
            waits, idle = self._waits_since, self._idle_since
            late = waits is not None and now - waits > HEAD_SECONDS
            if late or (waits is None and idle is not None and now - idle > KEEP_ALIVE):
                self.abort()


def url_of(bound: socket.socket, scheme: str = "http") -> str:
    host, port = bound.getsockname()[:2]
    return f"{scheme}://{format_address(host, port)}"


def server_of(
    app: Starlette,
    engine: EngineClient,
    bound: socket.socket,
    grace: float,
    limit: int,
    certificate: Path | None = None,
    key: Path | None = None,
) -> uvicorn.Server:
    """A server on a bound socket with at most ``limit`` connections. ``certificate``, ``key``: PEM files for TLS."""
    config = uvicorn.Config(
        app,
        http=type("Connection", (Connection,), {"limit": limit}),
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        backlog=ACCEPTED_AT_ONCE,
        timeout_graceful_shutdown=int(grace) + FINAL_SECONDS,
        ssl_certfile=certificate,
        ssl_keyfile=key,
    )
    return _Server(config, engine, url_of(bound, "https" if certificate else "http"), grace)


def serve(
    app: Starlette, engine: EngineClient, bound: socket.socket, grace: float, limit: int, *tls: Path | None
) -> None:
    """Serve until SIGTERM or SIGINT; then finish accepted requests within ``grace`` seconds. See ``server_of``."""
    server = server_of(app, engine, bound, grace, limit, *tls)
    # Uvicorn raises the signals again after shutdown.
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
            # Uvicorn has no option for this timeout.
            loop = asyncio.get_running_loop()
            create = functools.partial(loop.create_server, ssl_handshake_timeout=TLS_HANDSHAKE)
            loop.create_server = create  # type: ignore[method-assign]
        await super().startup(sockets)
        for bound in sockets or ():
            # Uvicorn's ``backlog`` also limits how many are accepted at once.
            bound.listen(LISTEN_BACKLOG)
        print(f"listening on {self._url}", flush=True)

    async def on_tick(self, counter: int) -> bool:
        if counter % CHECK_TICKS == 0:
            connections: Collection[Any] = self.server_state.connections
            for connection in list(connections):
                connection.check_timeouts(time.monotonic())
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._engine.draining = True
        timer = asyncio.get_running_loop().call_later(self._grace, self._engine.end_all)
        await super().shutdown(sockets)
        timer.cancel()
        self._engine.end_all()

    def handle_exit(self, sig: int, frame: Any) -> None:
        # A second signal stops at once.
        self.force_exit = self.should_exit
        super().handle_exit(sig, frame)
