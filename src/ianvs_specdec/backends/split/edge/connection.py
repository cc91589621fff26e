"""The way to a verifier: a channel, and streams of messages that may break."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.net import LOOPBACK
from ianvs_specdec.net.addresses import address, written
from ianvs_specdec.net.split.split_pb2 import Down, Model, Question, Up
from ianvs_specdec.net.split.wire import AUTHORIZATION, DECODE, DESCRIBE, OPTIONS

FRAME_BYTES = 5
"""What gRPC puts before each message."""
KEEPALIVE_MS, KEEPALIVE_PATIENCE_MS = 5_000, 5_000
"""A verifier that is gone without a word is noticed after both together."""
RECONNECT_MS, LONGEST_RECONNECT_MS = 50, 100
"""Between two attempts to connect: a verifier that is back is to be found soon."""
CONNECTING_MS = 5_000
"""For one attempt: three round trips by satellite, TLS included, are 2 seconds."""
ASKED_AGAIN, LEAST_TIMEOUT = 0.1, 0.1
"""Seconds between two attempts to find a verifier, and for one."""
LEAVING = 1.0
"""Seconds in which a verifier may end a stream."""
LARGEST_ANSWER = 16 << 20
"""Bytes of one message of a verifier."""


class StreamBroken(Exception):
    """The stream broke, or could not be had: nothing is wrong with what was asked."""


@dataclass(frozen=True)
class Access:
    """``address`` is ``host:port``. ``token`` is what the verifier knows its clients by. TLS is used off loopback, and
    where ``authority`` is given: a PEM file with the certificate that signed the verifier's, None = the system's.
    ``via``: the address of a link that leads there, None = straight."""

    address: str
    token: str = ""
    authority: Path | None = None
    via: str | None = None

    def channel(self) -> grpc.Channel:
        """Raises ``UserError`` for an address or a file that can be none."""
        host, port = address(self.address, "verifier", default="")
        target = self.via or written(host, port)
        options: list[tuple[str, int | str]] = [
            *OPTIONS,
            ("grpc.keepalive_time_ms", KEEPALIVE_MS),
            ("grpc.keepalive_timeout_ms", KEEPALIVE_PATIENCE_MS),
            ("grpc.initial_reconnect_backoff_ms", RECONNECT_MS),
            ("grpc.min_reconnect_backoff_ms", CONNECTING_MS),
            ("grpc.max_reconnect_backoff_ms", LONGEST_RECONNECT_MS),
            ("grpc.max_receive_message_length", LARGEST_ANSWER),
            # A channel of its own: what was learned of a verifier that is gone is no channel's but this one's.
            ("grpc.use_local_subchannel_pool", 1),
            # A session opens its streams anew itself. gRPC's own retries may never end, and take all memory, where a
            # verifier closes the connection as a stream opens.
            ("grpc.enable_retries", 0),
        ]
        if self.authority is None and host in LOOPBACK:
            return grpc.insecure_channel(target, options)
        try:
            roots = self.authority.read_bytes() if self.authority else None
        except OSError as error:
            raise UserError(f"--verifier-ca {self.authority}: {error.strerror}") from error
        if self.via is not None:
            # The certificate is the verifier's.
            options.append(("grpc.ssl_target_name_override", host))
        return grpc.secure_channel(target, grpc.ssl_channel_credentials(roots), options)


class Connection:
    """``up`` and ``down`` are the bytes of all messages so far, with what gRPC puts before each."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._channel = access.channel()
        self._metadata = [(AUTHORIZATION, f"Bearer {access.token}")] if access.token else []
        self.up = self.down = 0

    def describe(self, patience: float, *, timed: bool = False) -> Model:
        """What the verifier serves, ``timed`` with a layer's time. Raises ``UserError`` where there is none within
        ``patience`` seconds."""
        ask = self._channel.unary_unary(
            DESCRIBE, request_serializer=Question.SerializeToString, response_deserializer=Model.FromString
        )
        deadline = time.monotonic() + patience
        while True:
            left = max(deadline - time.monotonic(), LEAST_TIMEOUT)
            try:
                return ask(Question(timed=timed), timeout=left, metadata=self._metadata)
            except grpc.RpcError as error:
                reason = _reason(error)
                again = error.code() == grpc.StatusCode.UNAVAILABLE and not _is_untrusted(reason)
                if not again or time.monotonic() > deadline:
                    raise UserError(f"--verifier {self._access.address}: {reason}") from error
            time.sleep(ASKED_AGAIN)

    def stream(self) -> Stream:
        """A new stream. Whether there is a verifier shows with its first message."""
        open_stream = self._channel.stream_stream(
            DECODE, request_serializer=self._sent, response_deserializer=self._received
        )
        return Stream(lambda requests: open_stream(requests, metadata=self._metadata))

    def renew(self) -> None:
        """Connect anew with the next stream. A channel waits after an attempt that failed, for a tenth of a second at
        least, and looks a name up once in half a minute."""
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
    """Messages both ways. A thread takes what comes."""

    def __init__(self, call: Callable[[Any], Any]) -> None:
        self._up: queue.SimpleQueue[Up | None] = queue.SimpleQueue()
        self._down: queue.SimpleQueue[tuple[float, Down | StreamBroken]] = queue.SimpleQueue()
        self.arrived = 0.0
        """When the message came that was received last (``time.perf_counter``)."""
        self._call = call(iter(self._up.get, None))
        self._thread = threading.Thread(target=self._listen, name="verifier", daemon=True)
        self._thread.start()

    def send(self, message: Up) -> None:
        self._up.put(message)

    def receive(self, wait: bool = True, patience: float | None = None) -> Down | None:
        """Return the next message, or None if there is none and ``wait`` is False. Raises ``StreamBroken``, also
        after ``patience`` seconds without a message."""
        try:
            self.arrived, message = self._down.get(wait, patience)
        except queue.Empty:
            if wait:
                raise StreamBroken(f"the verifier says nothing for {patience:g} s") from None
            return None
        if isinstance(message, StreamBroken):
            raise message
        return message

    def close(self, finished: bool = False) -> None:
        """End it. One that is ``finished`` is ended by the verifier, at once."""
        self._up.put(None)
        if finished:
            self._thread.join(LEAVING)
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


def _is_untrusted(reason: str) -> bool:
    """Whether the verifier's certificate is what is wrong: to try again is no use."""
    return any(part in reason for part in ("CERTIFICATE_VERIFY_FAILED", "Peer name", "Hostname Verification"))


def _reason(error: Any) -> str:
    """What gRPC says of a call that failed, in words for a user."""
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
