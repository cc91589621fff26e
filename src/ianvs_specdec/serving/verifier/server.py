"""The verifier's process: its port, its token and certificate, and a graceful end."""

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
from ianvs_specdec.serving.verifier.session import Outbox, Refused

log = logging.getLogger(__name__)

LONGEST_PROMPT = 1 << 20
"""Tokens of a prompt where the model's window sets no limit."""
LOOKAHEAD = 4 << 20
"""Bytes that a client may send ahead of what is read: otherwise 64 kB of hidden states take a round trip."""
LAST_WORDS = 5.0
"""Seconds in which a client may take the last that is written to it."""
POLL = 0.1
"""Seconds between two looks at whether all sessions are over, once it is to stop."""
STREAMS_BESIDE = 64
"""Streams beside those of sessions: of clients that are refused, or whose end is not yet seen."""
KEEPALIVE_MS, KEEPALIVE_PATIENCE_MS, LEAST_PING_MS = 10_000, 10_000, 2_000
"""A client that is gone without a word is noticed after the first two together; a client may ping as often as the last
says."""


def tls_credentials(chain: Path, key: Path) -> grpc.ServerCredentials:
    """Of PEM files."""
    return grpc.ssl_server_credentials([(key.read_bytes(), chain.read_bytes())])


class Server:
    """Serves ``service``, with TLS where there are ``credentials``. ``bind`` before ``run``; both on the event loop."""

    def __init__(
        self, service: Service, sessions: int, window: int | None, credentials: grpc.ServerCredentials | None
    ) -> None:
        self._service, self._credentials = service, credentials
        # Of token ids, or of hidden states of one step.
        largest = max((window or LONGEST_PROMPT) * TOKEN_BYTES, service.largest_slice) + MESSAGE_OVERHEAD
        options = [
            *OPTIONS,
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", largest),
            ("grpc.http2.lookahead_bytes", LOOKAHEAD),
            ("grpc.keepalive_time_ms", KEEPALIVE_MS),
            ("grpc.keepalive_timeout_ms", KEEPALIVE_PATIENCE_MS),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", LEAST_PING_MS),
        ]
        self._server = grpc.aio.server(options=options, maximum_concurrent_rpcs=sessions + STREAMS_BESIDE)
        handlers = {
            "Describe": grpc.unary_unary_rpc_method_handler(
                self._describe, response_serializer=Model.SerializeToString
            ),
            "Decode": grpc.stream_stream_rpc_method_handler(self._decode, response_serializer=Down.SerializeToString),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        self._stop = asyncio.Event()

    def bind(self, host: str, port: int) -> int:
        """The port that is listened on. Raises ``UserError`` if the address cannot be had."""
        address = format_address(host, port)
        try:
            if self._credentials is None:
                return self._server.add_insecure_port(address)
            return self._server.add_secure_port(address, self._credentials)
        except RuntimeError as error:
            raise UserError(f"cannot listen on {host} port {port}: --port names another, 0 any that is free") from error

    async def run(self, ready: Callable[[], None], grace: float) -> None:
        """Serve until ``stop``; then finish the sessions within ``grace`` seconds, and let no new ones in."""
        await self._server.start()
        ready()
        await self._stop.wait()
        self._service.draining = True
        deadline = time.monotonic() + grace
        while self._service.working and time.monotonic() < deadline:
            await asyncio.sleep(POLL)
        self._service.end_all("this verifier stops: open a new session at another one, or later")
        await self._server.stop(LAST_WORDS)
        self._service.close()

    def stop(self) -> None:
        """Have ``run`` end."""
        self._stop.set()

    def end_on(self, *signals: signal.Signals) -> None:
        for number in signals:
            asyncio.get_running_loop().add_signal_handler(number, self.stop)

    def _authorize(self, context: Any) -> None:
        given = dict(context.invocation_metadata() or ()).get(AUTHORIZATION, "")
        kind, _, token = str(given).partition(" ")
        self._service.authorize(token if kind.lower() == "bearer" else "")

    async def _describe(self, request: bytes, context: Any) -> Model:
        try:
            self._authorize(context)
        except Refused as refused:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, str(refused))
        return await self._service.describe(parse_message(Question, request) or Question())

    async def _decode(self, _: Any, context: Any) -> None:
        try:
            self._authorize(context)
        except Refused as refused:
            await context.write(Down(error=refused.to_message()))
            return

        async def hear() -> Up | None:
            data = await context.read()
            if data is grpc.aio.EOF:
                return None
            # What cannot be read says nothing, which is refused.
            return parse_message(Up, data) or Up()

        outbox = Outbox()
        talk = asyncio.create_task(self._service.converse(outbox, hear))
        try:
            await _write(outbox, context, self._service.limits.idle)
        finally:
            talk.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await talk


async def _write(outbox: Outbox, context: Any, patience: float) -> None:
    """Until there is no more, or the client does not take it within ``patience`` seconds."""
    while True:
        await outbox.news.wait()
        outbox.news.clear()
        while outbox.waiting:
            try:
                await asyncio.wait_for(context.write(outbox.waiting.popleft()), patience)
            except TimeoutError:
                await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the client does not read")
        if outbox.closed:
            return
