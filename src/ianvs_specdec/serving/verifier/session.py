"""Streams of clients, and the session that decodes one answer."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.engine.request import Request
from ianvs_specdec.net.split.split_pb2 import FAILED, IDLE, INVALID, Code, Down, End, Error, Tokens, Up, Verdict
from ianvs_specdec.net.split.wire import TENTHS
from ianvs_specdec.serving.verifier.drafter import RemoteDrafter
from ianvs_specdec.serving.verifier.metrics import Metrics

log = logging.getLogger(__name__)

RESEND_FACTOR = 1.5
"""A step's time is sent again once it has changed by this factor: smaller changes hardly affect the edge's choice."""


class StreamError(Exception):
    """Ends a stream with an error code and a message for its client."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code

    def to_message(self) -> Error:
        return Error(code=self.code, message=str(self))


class Outbox:
    """Messages to one client, in order. ``closed``: none will be added."""

    def __init__(self) -> None:
        self.waiting: deque[Down] = deque()
        self.news = asyncio.Event()
        self.closed = False

    def put(self, message: Down) -> None:
        """Add a message, unless closed. Tokens are merged with those that the client has not read."""
        if self.closed:
            return
        last = self.waiting[-1] if self.waiting else None
        if last is not None and message.HasField("tokens") and last.HasField("tokens"):
            last.tokens.MergeFrom(message.tokens)
        else:
            self.waiting.append(message)
        self.news.set()

    def close(self, last: Down | None = None) -> None:
        if last is not None:
            self.put(last)
        self.closed = True
        self.news.set()


class Stream:
    """What the sessions of a client share: the outbox, the idle timeout, the end. Used on the event loop.

    ``idle``: seconds that a client has to send its next ``message`` ("draft" or "slice").
    """

    def __init__(self, outbox: Outbox, counts: Metrics, idle: float, message: str) -> None:
        self._outbox, self._counts, self._idle, self._message = outbox, counts, idle, message
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def end(self, error: StreamError) -> None:
        """End the stream with an error."""
        self._counts.refused(error.code)
        self._outbox.close(Down(error=error.to_message()))
        self.cancel()

    def cancel(self) -> None:
        """End the stream; nothing more is sent."""
        self._expect(False)
        self._outbox.close()

    def _expect(self, message: bool) -> None:
        """Start the idle timeout if a message of the client is next, otherwise stop it."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if message:
            error = StreamError(IDLE, f"no {self._message} arrived within {self._idle:g} s (--idle of the verifier)")
            self._timer = self._loop.call_later(self._idle, self.end, error)

    def _on_loop(self, function: Callable[..., None], *arguments: object) -> None:
        """Call a function on the event loop, from any thread. Its errors end the stream."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._run, function, *arguments)

    def _run(self, function: Callable[..., None], *arguments: object) -> None:
        try:
            function(*arguments)
        except Exception as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        log.error("a session failed", exc_info=error)
        self.end(StreamError(FAILED, "this session failed; the verifier's log says why"))


class Session(Stream):
    """Decodes one answer. ``emit`` and ``over`` are called on the engine's thread, all else on the event loop.

    ``drafter``: that of the request if the edge drafts, else None. ``wake`` wakes the engine.
    """

    request: Request

    def __init__(
        self, outbox: Outbox, drafter: RemoteDrafter | None, wake: Callable[[], None], idle: float, counts: Metrics
    ) -> None:
        super().__init__(outbox, counts, idle, "draft")
        self._drafter, self._wake = drafter, wake
        self.ended = False
        self._since = time.perf_counter()
        """Start of the verifier's turn."""
        self._sent_budget, self._sent_seconds = -1, 0.0
        self._steps: list[float] = []

    def take(self, message: Up) -> None:
        """Handle a message. Raises ``StreamError``."""
        if self.ended:
            return
        try:
            if self._drafter is None or not message.HasField("draft"):
                raise ValueError("after the first message of a session, only drafts may follow, in mode SPLIT")
            is_next = self._drafter.offer(message.draft)
        except ValueError as error:
            raise StreamError(INVALID, str(error)) from error
        if is_next:
            self._expect(False)
            self._since = time.perf_counter()
            self._wake()

    def cancel(self) -> None:
        super().cancel()
        self.ended = True
        self.request.cancel()
        self._wake()

    def emit(self, tokens: list[int]) -> None:
        """``on_tokens`` of the request."""
        now = time.perf_counter()
        node = None if self._drafter is None else self._drafter.judged(tokens)
        budget = 0 if self._drafter is None else self._drafter.budget
        seconds, self._since = now - self._since, now
        self._on_loop(self._send, tokens, node, budget, seconds)

    def over(self) -> None:
        """The engine has finished the request."""
        self._on_loop(self._over)

    def _send(self, tokens: list[int], node: int | None, budget: int, seconds: float) -> None:
        """Send the tokens of one step. ``node``: last accepted node of its draft, None without one; ``seconds``: since
        the verifier's turn began."""
        self._steps.append(seconds)
        tenths = self._tenths(seconds)
        if node is None:
            self._counts.streamed(len(tokens))
            self._outbox.put(Down(tokens=Tokens(tokens=tokens, tenths=tenths)))
        else:
            self._counts.round(len(tokens), seconds)
            verdict = Verdict(node=node, token=tokens[-1], tenths=tenths)
            if budget != self._sent_budget:
                self._sent_budget, verdict.budget = budget, budget + 1
            self._outbox.put(Down(verdict=verdict))
        self._expect(self._drafter is not None and not self._drafter.ready and not self.ended)

    def _tenths(self, seconds: float) -> int:
        """Tenths of a millisecond to send, 0 if about the same as sent before."""
        if self._sent_seconds / RESEND_FACTOR <= seconds <= self._sent_seconds * RESEND_FACTOR:
            return 0
        self._sent_seconds = seconds
        return max(1, round(seconds * TENTHS))

    def _over(self) -> None:
        self._expect(False)
        if self.ended:
            return
        self.ended = True
        error = self.request.error
        if error is None:
            reason = self.request.result().finish_reason
            # No step if the confirmed tokens end in a stop string.
            first, *others = self._steps or [0.0]
            prefill, work = max(1, round(first * TENTHS)), round(sum(others) * TENTHS)
            self._outbox.close(Down(end=End(finish_reason=reason, prefill=prefill, work=work)))
        elif isinstance(error, UserError):
            self.end(StreamError(INVALID, str(error)))
        else:
            self._fail(error)
