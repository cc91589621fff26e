"""gRPC connections to a verifier, and streams of messages that may break."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from ianvs_specdec.common.errors import AnswerError, UserError
from ianvs_specdec.net import LOOPBACK
from ianvs_specdec.net.addresses import format_address, parse_address
from ianvs_specdec.net.split.split_pb2 import BUSY, IDLE, Down, Model, Question, Up
from ianvs_specdec.net.split.wire import AUTHORIZATION, DECODE, DESCRIBE, OPTIONS

FRAME_BYTES = 5
"""Prefix of each gRPC message."""
KEEPALIVE_MS, KEEPALIVE_PATIENCE_MS = 5_000, 5_000
"""A silent loss of the verifier is detected after both together."""
RECONNECT_MS, MAX_RECONNECT_MS = 50, 100
"""Backoff between attempts to connect."""
CONNECTING_MS = 5_000
"""Timeout of an attempt: three round trips by satellite, with TLS, take 2 s."""
RETRY_PAUSE, MIN_TIMEOUT = 0.1, 0.1
"""Seconds between requests for a description, and for one at least."""
CLOSING = 1.0
"""Seconds that a verifier has to end a finished stream."""
MAX_MESSAGE = 16 << 20
"""Bytes of a message from a verifier."""


class StreamBroken(Exception):
    """The stream broke or could not be opened; the request may be valid."""


@dataclass(frozen=True)
class Access:
    """How to reach a verifier at ``address`` (``host:port``), with ``token``.

    TLS is used except on loopback without ``authority``: a PEM file with the certificate that signed the verifier's,
    None = the system's. ``via``: the address of a link to the verifier, None = direct.
    """

    address: str
    token: str = ""
    authority: Path | None = None
    via: str | None = None

    def channel(self) -> grpc.Channel:
        """Raises UserError for an invalid address or file."""
        host, port = parse_address(self.address, "verifier", default="")
        target = self.via or format_address(host, port)
        options: list[tuple[str, int | str]] = [
            *OPTIONS,
            ("grpc.keepalive_time_ms", KEEPALIVE_MS),
            ("grpc.keepalive_timeout_ms", KEEPALIVE_PATIENCE_MS),
            ("grpc.initial_reconnect_backoff_ms", RECONNECT_MS),
            ("grpc.min_reconnect_backoff_ms", CONNECTING_MS),
            ("grpc.max_reconnect_backoff_ms", MAX_RECONNECT_MS),
            ("grpc.max_receive_message_length", MAX_MESSAGE),
            # Do not share the backoff state of other options.
            ("grpc.use_local_subchannel_pool", 1),
            # gRPC's retries may never end, and take all memory, if a verifier closes the connection as a stream opens.
            ("grpc.enable_retries", 0),
        ]
        if self.authority is None and host in LOOPBACK:
            return grpc.insecure_channel(target, options)
        try:
            roots = self.authority.read_bytes() if self.authority else None
        except OSError as error:
            raise UserError(f"--verifier-ca {self.authority}: {error.strerror}") from error
        if self.via is not None:
            # The certificate is the verifier's, not the link's.
            options.append(("grpc.ssl_target_name_override", host))
        return grpc.secure_channel(target, grpc.ssl_channel_credentials(roots), options)


class Connection:
    """A channel to a verifier. ``up``, ``down``: bytes of all messages so far, with gRPC's prefix."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._channel = access.channel()
        self._metadata = [(AUTHORIZATION, f"Bearer {access.token}")] if access.token else []
        self.up = self.down = 0

    def describe(self, patience: float, *, timed: bool = False) -> Model:
        """The verifier's model; ``timed``: with the time of a layer. Raises UserError after ``patience`` seconds."""
        ask = self._channel.unary_unary(
            DESCRIBE, request_serializer=Question.SerializeToString, response_deserializer=Model.FromString
        )
        deadline = time.monotonic() + patience
        while True:
            left = max(deadline - time.monotonic(), MIN_TIMEOUT)
            try:
                return ask(Question(timed=timed), timeout=left, metadata=self._metadata)
            except grpc.RpcError as error:
                reason = _reason(error)
                again = error.code() == grpc.StatusCode.UNAVAILABLE and not _is_untrusted(reason)
                if not again or time.monotonic() > deadline:
                    raise UserError(f"--verifier {self._access.address}: {reason}") from error
            time.sleep(RETRY_PAUSE)

    def stream(self) -> Stream:
        """A new stream. Only its first message shows whether the verifier is reachable."""
        open_stream = self._channel.stream_stream(
            DECODE, request_serializer=self._sent, response_deserializer=self._received
        )
        return Stream(lambda requests: open_stream(requests, metadata=self._metadata))

    def renew(self) -> None:
        """Reconnect with the next stream, without the channel's backoff (0.1 s) and DNS cache (30 s)."""
        self._channel.close()
        self._channel = self._access.channel()

    def close(self) -> None:
        self._channel.close()

    def _sent(self, message: Up) -> bytes:
        data: bytes = message.SerializeToString()
        self.up += len(data) + FRAME_BYTES
        return data

    def _received(self, data: bytes) -> Down:
        self.down += len(data) + FRAME_BYTES
        return Down.FromString(data)


class Stream:
    """A bidirectional stream of messages. A thread receives."""

    def __init__(self, call: Callable[[Any], Any]) -> None:
        self._up: queue.SimpleQueue[Up | None] = queue.SimpleQueue()
        self._down: queue.SimpleQueue[tuple[float, Down | StreamBroken]] = queue.SimpleQueue()
        self.arrived = 0.0
        """When the last received message arrived (``time.perf_counter``)."""
        self._call = call(iter(self._up.get, None))
        self._thread = threading.Thread(target=self._listen, name="verifier", daemon=True)
        self._thread.start()

    def open(self, message: Up, patience: float | None = None) -> None:
        """Send the first message and wait for its confirmation. Raises as ``receive``, and AnswerError."""
        self.send(message)
        first = self.receive(patience=patience)
        assert first is not None
        if not first.HasField("opened"):
            raise refusal(first)

    def send(self, message: Up) -> None:
        self._up.put(message)

    def receive(self, wait: bool = True, patience: float | None = None) -> Down | None:
        """The next message; None if there is none and ``wait`` is False.

        Raises ``StreamBroken``, also after ``patience`` seconds.
        """
        try:
            self.arrived, message = self._down.get(wait, patience)
        except queue.Empty:
            if wait:
                raise StreamBroken(f"no message from the verifier for {patience:g} s") from None
            return None
        if isinstance(message, StreamBroken):
            raise message
        return message

    def close(self, finished: bool = False) -> None:
        """End the stream. ``finished``: the verifier is about to end it."""
        self._up.put(None)
        if finished:
            self._thread.join(CLOSING)
        self._call.cancel()
        self._thread.join()

    def _listen(self) -> None:
        reason = "the verifier closed the stream"
        try:
            for message in self._call:
                self._down.put((time.perf_counter(), message))
        except grpc.RpcError as error:
            reason = _reason(error)
        self._down.put((time.perf_counter(), StreamBroken(reason)))


def refusal(down: Down) -> Exception:
    """The exception for an error message: ``StreamBroken`` if a new stream may help, else AnswerError."""
    error = down.error
    if not down.HasField("error"):
        return AnswerError("the verifier sent an unknown message: use the same version on both sides")
    if error.code in (IDLE, BUSY):
        return StreamBroken(error.message)
    return AnswerError(f"the verifier refuses: {error.message}")


def _is_untrusted(reason: str) -> bool:
    """Whether the verifier's certificate is invalid, so that retries are useless."""
    return any(part in reason for part in ("CERTIFICATE_VERIFY_FAILED", "Peer name", "Hostname Verification"))


def _reason(error: Any) -> str:
    """The message for a failed call."""
    code, details = error.code(), error.details() or ""
    if code == grpc.StatusCode.UNAUTHENTICATED:
        return details
    if code == grpc.StatusCode.UNIMPLEMENTED:
        return "this is no verifier of this version: is it the port of specdec verifier?"
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return "no verifier answers there: is it started, is the way open, and do both sides use TLS or none?"
    if _is_untrusted(details):
        return f"{details}: give the certificate that signed it with --verifier-ca, and see that both clocks are right"
    return f"{details or code}: is the verifier started, and do both sides use TLS or none?"
