"""The gRPC server of a verifier: port, authentication, TLS, graceful shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.net.addresses import format_address
from ianvs_specdec.net.split.split_pb2 import Down, Model, Question, Up
from ianvs_specdec.net.split.wire import AUTHORIZATION, MESSAGE_OVERHEAD, OPTIONS, SERVICE, TOKEN_BYTES, parse_message
from ianvs_specdec.serving.verifier.service import Service
from ianvs_specdec.serving.verifier.session import Outbox, StreamError

log = logging.getLogger(__name__)

MAX_PROMPT = 1 << 20
"""Tokens of a prompt if the model has no window."""
LOOKAHEAD = 4 << 20
"""Bytes that a client may send before they are read: with the default, each 64 kB take a round trip."""
FINAL_SECONDS = 5.0
"""Time for clients to read their last messages at shutdown."""
POLL = 0.1
"""Seconds between two checks for open sessions at shutdown."""
EXTRA_STREAMS = 64
"""Streams in addition to the sessions, for clients that are refused or have just left."""
KEEPALIVE_MS, KEEPALIVE_TIMEOUT_MS, MIN_PING_MS = 10_000, 10_000, 2_000
"""Interval and timeout of pings that detect dead clients; minimum interval of clients' pings."""


def tls_credentials(chain: Path, key: Path) -> grpc.ServerCredentials:
    """TLS credentials from PEM files."""
    return grpc.ssl_server_credentials([(key.read_bytes(), chain.read_bytes())])


class Server:
    """Serves ``service``, with TLS if there are ``credentials``. Call ``bind``, then ``run``, on the event loop."""

    def __init__(
        self, service: Service, sessions: int, window: int | None, credentials: grpc.ServerCredentials | None
    ) -> None:
        self._service, self._credentials = service, credentials
        # A prompt, or the hidden states of one step.
        largest = max((window or MAX_PROMPT) * TOKEN_BYTES, service.largest_slice) + MESSAGE_OVERHEAD
        options = [
            *OPTIONS,
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", largest),
            ("grpc.http2.lookahead_bytes", LOOKAHEAD),
            ("grpc.keepalive_time_ms", KEEPALIVE_MS),
            ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", MIN_PING_MS),
        ]
        self._server = grpc.aio.server(options=options, maximum_concurrent_rpcs=sessions + EXTRA_STREAMS)
        handlers = {
            "Describe": grpc.unary_unary_rpc_method_handler(
                self._describe, response_serializer=Model.SerializeToString
            ),
            "Decode": grpc.stream_stream_rpc_method_handler(self._decode, response_serializer=Down.SerializeToString),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        self._stop = asyncio.Event()

    def bind(self, host: str, port: int) -> int:
        """Listen, and return the port. Raises ``UserError`` if the address is not available."""
        address = format_address(host, port)
        try:
            if self._credentials is None:
                return self._server.add_insecure_port(address)
            return self._server.add_secure_port(address, self._credentials)
        except RuntimeError as error:
            raise UserError(f"cannot listen on {host} port {port}: --port selects another, 0 a free one") from error

    async def run(self, ready: Callable[[], None], grace: float) -> None:
        """Serve until ``stop``; then reject new sessions and finish the open ones within ``grace`` seconds."""
        await self._server.start()
        ready()
        await self._stop.wait()
        self._service.draining = True
        deadline = time.monotonic() + grace
        while self._service.working and time.monotonic() < deadline:
            await asyncio.sleep(POLL)
        self._service.end_all("this verifier is shutting down: open a new session later, or at another one")
        await self._server.stop(FINAL_SECONDS)
        self._service.close()

    def stop(self) -> None:
        self._stop.set()

    def stop_on(self, *signals: signal.Signals) -> None:
        for number in signals:
            asyncio.get_running_loop().add_signal_handler(number, self.stop)

    def _authorize(self, context: Any) -> None:
        given = dict(context.invocation_metadata() or ()).get(AUTHORIZATION, "")
        kind, _, token = str(given).partition(" ")
        self._service.authorize(token if kind.lower() == "bearer" else "")

    async def _describe(self, request: bytes, context: Any) -> Model:
        try:
            self._authorize(context)
        except StreamError as error:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, str(error))
        return await self._service.describe(parse_message(Question, request) or Question())

    async def _decode(self, _: Any, context: Any) -> None:
        try:
            self._authorize(context)
        except StreamError as error:
            await context.write(Down(error=error.to_message()))
            return

        async def receive() -> Up | None:
            data = await context.read()
            if data is grpc.aio.EOF:
                return None
            # Invalid messages become empty ones, which are refused.
            return parse_message(Up, data) or Up()

        outbox = Outbox()
        reader = asyncio.create_task(self._service.converse(outbox, receive))
        try:
            await _write(outbox, context, self._service.limits.idle)
        finally:
            reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reader


async def _write(outbox: Outbox, context: Any, timeout: float) -> None:
    """Send messages until the outbox is closed, or the client does not read for ``timeout`` seconds."""
    while True:
        await outbox.news.wait()
        outbox.news.clear()
        while outbox.waiting:
            try:
                await asyncio.wait_for(context.write(outbox.waiting.popleft()), timeout)
            except TimeoutError:
                await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the client does not read")
        if outbox.closed:
            return
