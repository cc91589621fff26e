"""One session: its request in the engine, what was put out so far, and the stream that is told of it, if any."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.engine.request import Request
from ianvs_specdec.net.split.split_pb2 import (
    FAILED,
    IDLE,
    INVALID,
    SPLIT,
    STREAM,
    Code,
    Down,
    End,
    Error,
    Opened,
    Tokens,
    Up,
    Verdict,
)
from ianvs_specdec.net.split.wire import TENTHS
from ianvs_specdec.serving.verifier.drafter import Emitted, FarDrafter

log = logging.getLogger(__name__)

ID_BYTES = 16
"""Of a session's id: nobody guesses one of 128 bits."""
TOLD_AGAIN = 1.5
"""A step's time is told again once it has changed by this factor: the edge's choice hardly depends on less."""


class Refused(Exception):
    """What a client did is refused: its stream ends with ``code`` and a message for it."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(eq=False)
class Stream:
    """What is to be written to one client, in order. ``closed`` once there will be nothing more."""

    waiting: deque[Down]
    news: asyncio.Event
    closed: bool = False
    writing: float | None = None
    """Since when the client has not taken what was written."""

    @classmethod
    def new(cls) -> Stream:
        return cls(deque(), asyncio.Event())

    def say(self, message: Down) -> None:
        last = self.waiting[-1] if self.waiting else None
        if last is not None and message.HasField("tokens") and last.HasField("tokens") and not last.tokens.last:
            last.tokens.MergeFrom(message.tokens)
        else:
            self.waiting.append(message)
        self.news.set()

    def close(self) -> None:
        self.closed = True
        self.news.set()


class Session:
    """``client`` is whose session it is. All methods but ``emit`` and ``over`` are called on the event loop, those two
    on the engine's thread. ``wake`` has the engine look again; ``most`` is the largest budget that is told."""

    def __init__(
        self,
        client: bytes,
        drafter: FarDrafter,
        most: int,
        wake: Callable[[], None],
        output: list[int],
        told: Callable[[Emitted], None],
    ) -> None:
        self.id = secrets.token_bytes(ID_BYTES)
        self.client, self._drafter, self._most, self._wake, self._told = client, drafter, most, wake, told
        self._loop = asyncio.get_running_loop()
        self.output = output
        """What was put out so far."""
        self.ended: End | Error | None = None
        self._stream: Stream | None = None
        self._settled = asyncio.Event()
        self.seen = time.monotonic()
        """When the client was heard of last, or was told what it waited for."""
        self.request: Request
        self._budget, self._seconds = most, 0.0
        self._began = False
        self._prefill = self._work = 0.0
        """Seconds until the token that comes of the prompt was there, and of all steps since."""

    @property
    def attached(self) -> bool:
        return self._stream is not None

    @property
    def waits(self) -> bool:
        """Whether it is the client's turn: there is nothing to do before it says something."""
        return self.ended is not None or self._drafter.waits

    @property
    def forsaken(self) -> bool:
        """Whether it ended because its client was not heard of: one that comes back begins anew."""
        return isinstance(self.ended, Error) and self.ended.code == IDLE

    def unread(self, since: float) -> Stream | None:
        """The stream, where its client has not taken since then what is written to it."""
        stream = self._stream
        return stream if stream is not None and stream.writing is not None and stream.writing < since else None

    def attach(self, stream: Stream) -> None:
        """From now on ``stream`` is told. The one before, whose client has given it up, is closed."""
        if self._stream is not None:
            self._stream.close()
        self._stream, self.seen = stream, time.monotonic()

    def detach(self, stream: Stream) -> None:
        """``stream`` broke. Nothing happens where another has taken its place."""
        if self._stream is stream:
            self._stream, self.seen = None, time.monotonic()

    def opened(self) -> None:
        """Tell the client by which id to resume."""
        self._say(Down(opened=Opened(session=self.id, budget=self._most)))

    async def resume(self, stream: Stream, confirmed: int) -> None:
        """Go on with ``stream``, whose client has ``confirmed`` tokens. What was drafted and not verified is void."""
        if confirmed > len(self.output):
            raise Refused(INVALID, f"of {confirmed} tokens only {len(self.output)} were put out: open a new session")
        self.attach(stream)
        # Whatever comes of the draft in work is told with all that the client lacks.
        self._stream = None
        while self._drafter.resume() and self.ended is None:
            self._settled.clear()
            await self._settled.wait()
        self._stream = stream
        self._say(Down(tokens=Tokens(tokens=self.output[confirmed:])))
        self._budget, self._seconds = -1, 0.0
        if self.ended is not None:
            self._tell_end(self.ended)

    def take(self, message: Up) -> None:
        """The client says something."""
        self.seen = time.monotonic()
        kind = message.WhichOneof("message")
        if self.ended is not None:
            return
        try:
            if kind == "draft":
                turn = self._drafter.offer(message.draft)
            elif kind == "switch" and message.switch.mode in (SPLIT, STREAM):
                turn = self._drafter.switch(message.switch.mode)
            else:
                raise ValueError("only drafts and changes of the mode follow the first message of a session")
        except ValueError as error:
            raise Refused(INVALID, str(error)) from error
        if turn:
            self._wake()

    def end(self, error: Refused) -> None:
        """It is over, because of what its client did or did not do."""
        if self.ended is None:
            self._finish(Error(code=error.code, message=str(error)))
        self.request.cancel()
        self._wake()

    def emit(self, tokens: list[int]) -> None:
        """The engine has put out ``tokens``."""
        emitted = self._drafter.emitted(tokens)
        self._later(self._emitted, emitted)

    def over(self) -> None:
        """The engine is done with its request."""
        self._later(self._over)

    def _later(self, function: Callable[..., None], *arguments: object) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._or_fail, function, *arguments)

    def _or_fail(self, function: Callable[..., None], *arguments: object) -> None:
        """What fails here has no caller that would tell the client."""
        try:
            function(*arguments)
        except Exception as error:
            self._fail(error)
            self.request.cancel()
            self._wake()

    def _emitted(self, emitted: Emitted) -> None:
        self.output += emitted.tokens
        self.seen = time.monotonic()
        self._told(emitted)
        self._spend(emitted.seconds)
        tenths = self._changed(emitted.seconds)
        if emitted.node is None:
            tokens = Tokens(tokens=emitted.tokens, tenths=tenths, last=emitted.switched)
            self._say(Down(tokens=tokens))
        else:
            verdict = Verdict(node=emitted.node, token=emitted.tokens[-1], tenths=tenths)
            if emitted.budget is not None and (budget := min(emitted.budget, self._most)) != self._budget:
                self._budget, verdict.budget = budget, budget + 1
            self._say(Down(verdict=verdict))
        self._settled.set()

    def _changed(self, seconds: float) -> int:
        """The tenths of a millisecond to tell, 0 where they are about what was told before."""
        if self._seconds / TOLD_AGAIN <= seconds <= self._seconds * TOLD_AGAIN:
            return 0
        self._seconds = seconds
        return max(1, round(seconds * TENTHS))

    def _spend(self, seconds: float) -> None:
        if self._began:
            self._work += seconds
        else:
            self._prefill, self._began = seconds, True

    def _over(self) -> None:
        error = self.request.error
        if error is None:
            reason = self.request.result().finish_reason
            prefill = max(1, round(self._prefill * TENTHS))
            self._finish(End(finish_reason=reason, prefill=prefill, work=round(self._work * TENTHS)))
        elif isinstance(error, UserError):
            self._finish(Error(code=INVALID, message=str(error)))
        else:
            self._fail(error)
        self._settled.set()

    def _fail(self, error: BaseException) -> None:
        log.error("a session failed", exc_info=error)
        self._finish(Error(code=FAILED, message="this session failed; the verifier's log says why"))
        self._settled.set()

    def _finish(self, end: End | Error) -> None:
        if self.ended is None:
            self.ended, self.seen = end, time.monotonic()
            self._tell_end(end)

    def _tell_end(self, end: End | Error) -> None:
        self._say(Down(end=end) if isinstance(end, End) else Down(error=end))
        if self._stream is not None:
            self._stream.close()

    def _say(self, message: Down) -> None:
        if self._stream is not None:
            self._stream.say(message)
