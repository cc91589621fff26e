"""All sessions of a verifier: who may open and resume them, and when they end."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.engine import StopStrings
from ianvs_specdec.engine.request import Request
from ianvs_specdec.net.split.split_pb2 import (
    ANOTHER_MODEL,
    BUSY,
    FAILED,
    IDLE,
    INVALID,
    SPLIT,
    STREAM,
    UNAUTHENTICATED,
    Down,
    Error,
    Limits,
    Model,
    Open,
    Pong,
    Switch,
    Up,
)
from ianvs_specdec.net.split.wire import sampling_of
from ianvs_specdec.serving.verifier.drafter import FarDrafter
from ianvs_specdec.serving.verifier.metrics import Metrics
from ianvs_specdec.serving.verifier.served import Served
from ianvs_specdec.serving.verifier.session import Refused, Session, Stream

log = logging.getLogger(__name__)

FIRST_SECONDS = 10.0
"""Within which a client says what it wants."""
SWEEP_SECONDS = 0.5
"""Between two looks for sessions whose time is over."""
LONGEST_TASK = 100
MOST_STOPS, LONGEST_STOP = 16, 1000


@dataclass(frozen=True)
class Bounds:
    """What clients may do. ``sessions`` at a time, drafts of ``draft`` tokens, ``in_flight`` of them before their
    verdicts, silence of ``idle`` seconds where it is their turn; ``keep``: seconds for which a session whose stream
    broke can be resumed."""

    sessions: int = 256
    draft: int = 64
    in_flight: int = 8
    idle: float = 60.0
    keep: float = 60.0


class Service:
    """``tokens``: digests of those that clients may give; None = they need none. All methods are called on the event
    loop."""

    def __init__(self, served: Served, bounds: Bounds, tokens: Iterable[bytes] | None, counts: Metrics) -> None:
        self._served, self._bounds, self._counts = served, bounds, counts
        self._tokens = None if tokens is None else list(tokens)
        self._sessions: dict[bytes, Session] = {}
        self.draining = False

    @property
    def sessions(self) -> tuple[Session, ...]:
        return tuple(self._sessions.values())

    @property
    def working(self) -> int:
        """Sessions that are not over."""
        return sum(session.ended is None for session in self._sessions.values())

    def describe(self) -> Model:
        served, bounds = self._served, self._bounds
        return Model(
            name=served.name,
            fingerprint=served.fingerprint,
            tokenizer=served.tokenizer,
            vocabulary=served.target.vocabulary,
            window=served.target.window or 0,
            ends=sorted(served.eos_ids),
            limits=Limits(draft=bounds.draft, in_flight=bounds.in_flight, keep_seconds=int(bounds.keep)),
            drafts=served.drafts,
        )

    def client(self, token: str) -> bytes:
        """Who gives ``token``. Raises ``Refused`` for one that is not known."""
        given = digest(token)
        if self._tokens is not None and not any(hmac.compare_digest(given, known) for known in self._tokens):
            raise Refused(UNAUTHENTICATED, "the verifier does not know this token: --token-file names the file with it")
        return given

    async def converse(self, client: bytes, stream: Stream, hear: Callable[[], Awaitable[Up | None]]) -> None:
        """Take what one stream's client says, which ``hear`` gives, None at its end. What it is told is written to
        ``stream``, which is closed when all is said."""
        session: Session | None = None
        try:
            try:
                first = await asyncio.wait_for(hear(), FIRST_SECONDS)
            except TimeoutError:
                raise Refused(IDLE, f"nothing was said within {FIRST_SECONDS:g} s") from None
            session = await self._begin(client, stream, first)
            while (message := await hear()) is not None:
                if message.HasField("leave"):
                    self._leave(session)
                    return
                if message.HasField("ping"):
                    answer_ping(stream)
                    continue
                session.take(message)
        except Refused as refused:
            self._counts.refused(refused.code)
            if session is not None:
                session.end(refused)
            else:
                _last(stream, refused)
        except Exception as error:
            log.error("a stream failed", exc_info=error)
            _last(stream, Refused(FAILED, "this verifier failed; its log says why"))
        finally:
            if session is not None:
                session.detach(stream)

    async def _begin(self, client: bytes, stream: Stream, first: Up | None) -> Session:
        kind = None if first is None else first.WhichOneof("message")
        if kind == "open":
            assert first is not None
            return await self._go_on(client, stream, first.open) or self._open(client, stream, first.open)
        raise Refused(INVALID, "a session begins with Open: is this another version of ianvs-specdec?")

    def _leave(self, session: Session) -> None:
        """Its client has all it wanted."""
        if session.ended is None:
            session.end(Refused(INVALID, "the client left"))
        self._sessions.pop(session.id, None)

    def _open(self, client: bytes, stream: Stream, wanted: Open) -> Session:
        if self.draining:
            raise Refused(BUSY, "this verifier is about to stop: try again later, or another one")
        if len(self._sessions) >= self._bounds.sessions:
            raise Refused(BUSY, f"{len(self._sessions)} sessions are the most that this verifier serves at a time")
        self._check_model(wanted)
        served, bounds = self._served, self._bounds
        drafter = FarDrafter(served.drafter.fork(), wanted.mode, bounds.draft, bounds.in_flight, len(wanted.output))
        told = self._counts.emitted
        session = Session(client, drafter, bounds.draft, served.batcher.wake, list(wanted.output), told)
        session.request = self._request(wanted, drafter, session.emit)
        served.batcher.submit(session.request, session.over)
        self._sessions[session.id] = session
        session.attach(stream)
        session.opened()
        self._counts.opened(len(wanted.prompt) + len(wanted.output))
        return session

    def _check_model(self, wanted: Open) -> None:
        served = self._served
        if wanted.fingerprint and wanted.fingerprint != served.fingerprint:
            reason = f"this verifier serves {served.name} now, another model than the session began with"
            raise Refused(ANOTHER_MODEL, f"{reason}: ask anew, so that the whole answer is of one model")

    def _request(self, wanted: Open, drafter: FarDrafter, emit: Callable[[list[int]], None]) -> Request:
        served = self._served
        long = [text for text in wanted.stop if len(text) > LONGEST_STOP]
        if wanted.mode not in (SPLIT, STREAM) or len(wanted.task) > LONGEST_TASK:
            raise Refused(INVALID, f"the mode must be SPLIT or STREAM, the task at most {LONGEST_TASK} characters")
        if long or len(wanted.stop) > MOST_STOPS:
            raise Refused(INVALID, f"at most {MOST_STOPS} stop strings of at most {LONGEST_STOP} characters each")
        try:
            whole = sampling_of(wanted)
            left = whole.max_tokens - len(wanted.output)
            return Request(
                served.target,
                drafter,
                [*wanted.prompt, *wanted.output],
                replace(whole, max_tokens=left),
                eos_ids=served.eos_ids,
                stop=StopStrings(served.text, whole.stop).after(wanted.output) if whole.stop else None,
                on_tokens=emit,
                rule="coupled",
                task=wanted.task,
            )
        except (ValueError, UserError) as error:
            raise Refused(INVALID, str(error)) from error

    def _own(self, client: bytes, named: bytes) -> Session | None:
        """The session that is named so. One of another client is none, of which nobody learns that it is there."""
        session = self._sessions.get(named)
        return session if session is not None and hmac.compare_digest(session.client, client) else None

    async def _go_on(self, client: bytes, stream: Stream, wanted: Open) -> Session | None:
        """Resume the session that an opening names; None where it is to be opened."""
        session = self._own(client, wanted.session)
        if session is None:
            return None
        self._check_model(wanted)
        if session.forsaken:
            del self._sessions[session.id]
            return None
        await session.resume(stream, len(wanted.output))
        self._counts.resumed()
        if wanted.mode == STREAM:
            # Nobody knows whether the change to this mode came through before the stream broke.
            session.take(Up(switch=Switch(mode=STREAM)))
        return session

    def sweep(self) -> list[Stream]:
        """End what has had its time. Returns the streams whose clients do not take what is written to them."""
        now, bounds = time.monotonic(), self._bounds
        stuck = []
        for session in self.sessions:
            silent = now - session.seen
            if not session.attached:
                if silent > bounds.keep:
                    session.end(Refused(IDLE, "nobody resumed the session"))
                    del self._sessions[session.id]
            elif (stream := session.unread(now - bounds.idle)) is not None:
                session.end(Refused(IDLE, "the client does not read"))
                stuck.append(stream)
            elif session.ended is None and session.waits and silent > bounds.idle:
                self._counts.refused(IDLE)
                session.end(Refused(IDLE, f"no draft came within {bounds.idle:g} s (--idle of the verifier)"))
        return stuck

    def end_all(self, why: str) -> None:
        for session in self.sessions:
            session.end(Refused(BUSY, why))


def answer_ping(stream: Stream) -> None:
    """Tell a client that asks how far we are. One that asks on before it has taken the answer fills our memory."""
    if any(waiting.HasField("pong") for waiting in stream.waiting):
        raise Refused(INVALID, "a ping before the answer to the one before it")
    stream.say(Down(pong=Pong()))


def _last(stream: Stream, refused: Refused) -> None:
    stream.say(Down(error=Error(code=refused.code, message=str(refused))))
    stream.close()


def digest(token: str) -> bytes:
    """What is kept of a token."""
    return hashlib.sha256(token.encode()).digest()
