"""The process around the endpoints: a socket, the ready line, a graceful end."""

from __future__ import annotations

import asyncio
import functools
import signal
import socket
import time
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette

from ianvs_specdec.net.addresses import written
from ianvs_specdec.serving.connections import ACCEPTED_AT_ONCE, KEEP_ALIVE, WAITING_TO_BE_ACCEPTED, Connection, look_at
from ianvs_specdec.serving.engine import Serving

LOOKED_AT = 5
"""Ticks of a tenth of a second between two looks at the connections."""
HANDSHAKE = 10.0
"""Seconds for that of TLS."""
LAST_WORDS = 5
"""Seconds for telling the clients of requests that were given up."""


def url_of(bound: socket.socket, scheme: str = "http") -> str:
    host, port = bound.getsockname()[:2]
    return f"{scheme}://{written(host, port)}"


def server_of(
    app: Starlette,
    engine: Serving,
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


def serve(app: Starlette, engine: Serving, bound: socket.socket, grace: float, most: int, *tls: Path | None) -> None:
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
    def __init__(self, config: uvicorn.Config, engine: Serving, url: str, grace: float) -> None:
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
