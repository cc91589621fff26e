"""One answer: its request in the engine, and what its client is sent."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.engine.request import Request
from ianvs_specdec.net.split.split_pb2 import (
    FAILED,
    IDLE,
    INVALID,
    Code,
    Down,
    End,
    Error,
    Tokens,
    Up,
    Verdict,
)
from ianvs_specdec.net.split.wire import TENTHS
from ianvs_specdec.serving.verifier.drafter import RemoteDrafter

log = logging.getLogger(__name__)

SENT_AGAIN = 1.5
"""A step's time is sent again once it has changed by this factor: the edge's choice hardly depends on less."""


class Refused(Exception):
    """What a client did is refused: its stream ends with ``code`` and a message for it."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code

    def to_message(self) -> Error:
        return Error(code=self.code, message=str(self))


@dataclass(frozen=True)
class Emitted:
    """``tokens`` of one step. ``node`` is the last accepted one of its draft, None where there was none. ``seconds``
    count from the moment from which the verifier was waited for."""

    tokens: list[int]
    node: int | None
    budget: int
    seconds: float


class Counts(Protocol):
    """What is counted (see ``metrics``)."""

    def opened(self, prompt_tokens: int) -> None: ...
    def refused(self, code: Code) -> None: ...
    def emitted(self, emitted: Emitted) -> None: ...


class Outbox:
    """What is to be written to one client, in order. ``closed`` once there will be nothing more."""

    def __init__(self) -> None:
        self.waiting: deque[Down] = deque()
        self.news = asyncio.Event()
        self.closed = False

    def put(self, message: Down) -> None:
        """Nothing is added after the end. Tokens join those that the client has not taken."""
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


class Session:
    """All methods but ``emit`` and ``over`` are called on the event loop, those two on the engine's thread.

    ``drafter`` is that of the request where the edge drafts, else None. ``wake`` has the engine look again. A client
    whose turn it is has ``idle`` seconds to send its draft.
    """

    def __init__(
        self, outbox: Outbox, drafter: RemoteDrafter | None, wake: Callable[[], None], idle: float, counts: Counts
    ) -> None:
        self._outbox, self._drafter, self._wake, self._idle, self._counts = outbox, drafter, wake, idle, counts
        self._loop = asyncio.get_running_loop()
        self.request: Request
        self.ended = False
        self._since = time.perf_counter()
        """From when on the verifier is waited for."""
        self._turn: asyncio.TimerHandle | None = None
        """Ends the session where it is the client's turn for too long."""
        self._budget, self._told_seconds = -1, 0.0
        self._steps: list[float] = []

    def take(self, message: Up) -> None:
        """The client has sent something. Raises ``Refused``."""
        if self.ended:
            return
        try:
            if self._drafter is None or not message.HasField("draft"):
                raise ValueError("only drafts follow the first message of a session, and none in mode STREAM")
            is_next = self._drafter.offer(message.draft)
        except ValueError as error:
            raise Refused(INVALID, str(error)) from error
        if is_next:
            self._stop_waiting()
            self._since = time.perf_counter()
            self._wake()

    def end(self, refused: Refused) -> None:
        """End the session, because of what its client did or did not do."""
        self._counts.refused(refused.code)
        self._finish(Down(error=refused.to_message()))
        self.cancel()

    def cancel(self) -> None:
        """Nothing more is wanted."""
        self._stop_waiting()
        self.ended = True
        self._outbox.close()
        self.request.cancel()
        self._wake()

    def emit(self, tokens: list[int]) -> None:
        """The engine has put out ``tokens``."""
        now = time.perf_counter()
        node = None if self._drafter is None else self._drafter.judged(tokens)
        budget = 0 if self._drafter is None else self._drafter.budget
        emitted = Emitted(tokens, node, budget, now - self._since)
        self._since = now
        self._later(self._emitted, emitted)

    def over(self) -> None:
        """The engine is done with its request."""
        self._later(self._over)

    def _later(self, function: Callable[..., None], *arguments: object) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._or_fail, function, *arguments)

    def _or_fail(self, function: Callable[..., None], *arguments: object) -> None:
        """What fails here has no caller that reports it to the client."""
        try:
            function(*arguments)
        except Exception as error:
            self._fail(error)
            self.cancel()

    def _emitted(self, emitted: Emitted) -> None:
        self._counts.emitted(emitted)
        self._steps.append(emitted.seconds)
        tenths = self._tenths(emitted.seconds)
        if emitted.node is None:
            self._outbox.put(Down(tokens=Tokens(tokens=emitted.tokens, tenths=tenths)))
        else:
            verdict = Verdict(node=emitted.node, token=emitted.tokens[-1], tenths=tenths)
            if emitted.budget != self._budget:
                self._budget, verdict.budget = emitted.budget, emitted.budget + 1
            self._outbox.put(Down(verdict=verdict))
        self._stop_waiting()
        if self._drafter is not None and not self._drafter.ready and not self.ended:
            self._turn = self._loop.call_later(self._idle, self._expire)

    def _tenths(self, seconds: float) -> int:
        """The tenths of a millisecond to send, 0 where they are about what was sent before."""
        if self._told_seconds / SENT_AGAIN <= seconds <= self._told_seconds * SENT_AGAIN:
            return 0
        self._told_seconds = seconds
        return max(1, round(seconds * TENTHS))

    def _expire(self) -> None:
        self.end(Refused(IDLE, f"no draft came within {self._idle:g} s (--idle of the verifier)"))

    def _stop_waiting(self) -> None:
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None

    def _over(self) -> None:
        error = self.request.error
        if error is None:
            reason = self.request.result().finish_reason
            # Without a step where the confirmed tokens end in a stop string already.
            first, *others = self._steps or [0.0]
            prefill, work = max(1, round(first * TENTHS)), round(sum(others) * TENTHS)
            self._finish(Down(end=End(finish_reason=reason, prefill=prefill, work=work)))
        elif isinstance(error, UserError):
            self._finish(Down(error=Error(code=INVALID, message=str(error))))
        else:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        log.error("a session failed", exc_info=error)
        self._finish(Down(error=Error(code=FAILED, message="this session failed; the verifier's log says why")))

    def _finish(self, last: Down) -> None:
        self._stop_waiting()
        if not self.ended:
            self.ended = True
            self._outbox.close(last)
