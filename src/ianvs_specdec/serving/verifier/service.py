"""The model and the sessions of a verifier: who may open them, and when they end."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from ianvs_specdec import lengths
from ianvs_specdec.backends.prompts import model_digest, model_folder
from ianvs_specdec.backends.specdec import EngineLLM, Shared
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.drafters.datastore import fingerprint
from ianvs_specdec.engine import Drafter, StopStrings
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
    Cut,
    Down,
    Model,
    Open,
    Opened,
    Question,
    Up,
)
from ianvs_specdec.net.split.wire import sampling_of
from ianvs_specdec.records.identity import FileDigests
from ianvs_specdec.serving.protocol import served_name
from ianvs_specdec.serving.verifier.drafter import RemoteDrafter
from ianvs_specdec.serving.verifier.metrics import Metrics
from ianvs_specdec.serving.verifier.session import Outbox, Refused, Session
from ianvs_specdec.serving.verifier.slices import Slices, SliceSession

FINGERPRINT_BYTES = 8
"""Of the model's: it distinguishes models, and proves nothing."""
UNTOLD = "full"
"""The length of a verifier that does not draft itself: an edge's draft is verified whole."""


@dataclass(frozen=True)
class ServedModel(Shared):
    """See ``split.proto`` for ``fingerprint`` and ``tokenizer``."""

    name: str
    fingerprint: bytes
    tokenizer: str


def load_model(llm: EngineLLM, length: Any, sessions: int) -> ServedModel:
    """Load ``llm`` for ``sessions`` sessions. ``length`` rules the drafts of all, None = as its options say.

    Raises ``UserError`` for a method that cannot take over in the middle of an answer.
    """
    own = getattr(llm.options, "length", UNTOLD)
    shared = llm.shared(lengths.create(length or (UNTOLD if llm.method == "autoregressive" else own)), sessions)
    if shared.drafter.roots_in_prompt:
        raise UserError(
            f"method {llm.method} with start=official begins in the prompt: choose start=prompt", key="start"
        )
    return ServedModel(
        **vars(shared),
        name=served_name(llm.model),
        fingerprint=bytes.fromhex(model_digest(llm.model, FileDigests(None)))[:FINGERPRINT_BYTES],
        tokenizer=fingerprint(model_folder(llm.model)),
    )


log = logging.getLogger(__name__)

FIRST_SECONDS = 10.0
"""Within which a client says what it wants."""
LONGEST_TASK = 100
NANOS = 1e9
MOST_STOPS, LONGEST_STOP = 16, 1000


@dataclass(frozen=True)
class Limits:
    """What clients may do: ``sessions`` at a time, drafts of ``draft`` tokens, ``idle`` seconds until a draft is sent
    or what was written is read."""

    sessions: int = 256
    draft: int = 64
    idle: float = 60.0


class Service:
    """``tokens``: digests of those that clients may give; None = they need none. All methods are called on the event
    loop."""

    def __init__(self, served: ServedModel, limits: Limits, tokens: Iterable[bytes] | None, counts: Metrics) -> None:
        self._served, self.limits, self._counts = served, limits, counts
        self._tokens = None if tokens is None else list(tokens)
        self._slices = Slices(served.target, limits.draft, limits.idle)
        self.sessions: set[Session | SliceSession] = set()
        self.draining = False

    @property
    def working(self) -> bool:
        """Whether a session is not over."""
        return any(not session.ended for session in self.sessions)

    async def describe(self, question: Question) -> Model:
        served = self._served
        seconds = await self._slices.layer_seconds() if question.timed else 0.0
        return Model(
            name=served.name,
            fingerprint=served.fingerprint,
            tokenizer=served.tokenizer,
            vocabulary=served.target.vocabulary,
            window=served.target.window or 0,
            ends=sorted(served.eos_ids),
            most_draft=self.limits.draft,
            layer=round(seconds * NANOS),
            numerics=self._slices.numerics,
        )

    @property
    def largest_slice(self) -> int:
        """Bytes of hidden states in one message."""
        return self._slices.largest

    def authorize(self, token: str) -> None:
        """Raises ``Refused`` for a token that is not known."""
        given = token_digest(token)
        if self._tokens is not None and not any(hmac.compare_digest(given, known) for known in self._tokens):
            self._counts.refused(UNAUTHENTICATED)
            raise Refused(UNAUTHENTICATED, "the verifier does not know this token: --token-file names the file with it")

    async def converse(self, outbox: Outbox, hear: Callable[[], Awaitable[Up | None]]) -> None:
        """Take what one client sends, which ``hear`` returns, None at its end. What it is sent is put into ``outbox``,
        which is closed when that is all."""
        session: Session | SliceSession | None = None
        try:
            try:
                first = await asyncio.wait_for(hear(), FIRST_SECONDS)
            except TimeoutError:
                raise Refused(IDLE, f"nothing was sent within {FIRST_SECONDS:g} s") from None
            session = self._open(outbox, first)
            while (message := await hear()) is not None:
                session.take(message)
                if isinstance(session, SliceSession):
                    await session.room()
        except Refused as refused:
            if session is not None:
                session.end(refused)
            else:
                self._counts.refused(refused.code)
                outbox.close(Down(error=refused.to_message()))
        except Exception as error:
            log.error("a stream failed", exc_info=error)
            outbox.close(Down(error=Refused(FAILED, "this verifier failed; its log says why").to_message()))
        finally:
            if session is not None:
                session.cancel()
                self.sessions.discard(session)

    def _open(self, outbox: Outbox, first: Up | None) -> Session | SliceSession:
        if first is None or not (first.HasField("open") or first.HasField("cut")):
            raise Refused(INVALID, "a session begins with Open or Cut: is this another version of ianvs-specdec?")
        # An answer that has begun may go on: its stream broke, or its edge drafts no more.
        if self.draining and not first.open.output:
            raise Refused(BUSY, "this verifier is about to stop: try again later, or another one")
        if len(self.sessions) >= self.limits.sessions:
            raise Refused(BUSY, f"{len(self.sessions)} sessions are the most that this verifier serves at a time")
        fingerprint, served = first.open.fingerprint or first.cut.fingerprint, self._served
        if fingerprint and fingerprint != served.fingerprint:
            reason = f"this verifier serves {served.name} now, another model than the session began with"
            raise Refused(ANOTHER_MODEL, f"{reason}: ask anew, so that the whole answer is of one model")
        session = self._open_answer(outbox, first.open) if first.HasField("open") else self._cut(outbox, first.cut)
        self.sessions.add(session)
        return session

    def _cut(self, outbox: Outbox, cut: Cut) -> SliceSession:
        session = self._slices.open(outbox, cut, self._counts)
        self._counts.opened(0)
        return session

    def _open_answer(self, outbox: Outbox, wanted: Open) -> Session:
        served = self._served
        _check(wanted)
        remote = RemoteDrafter(self.limits.draft) if wanted.mode == SPLIT else None
        session = Session(outbox, remote, served.batcher.wake, self.limits.idle, self._counts)
        session.request = self._request(wanted, remote or served.drafter.fork(), session.emit)
        served.batcher.submit(session.request, session.over)
        outbox.put(Down(opened=Opened()))
        self._counts.opened(len(wanted.prompt) + len(wanted.output))
        return session

    def _request(self, wanted: Open, drafter: Drafter, emit: Callable[[list[int]], None]) -> Request:
        served = self._served
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

    def close(self) -> None:
        self._slices.close()

    def end_all(self, why: str) -> None:
        for session in tuple(self.sessions):
            session.end(Refused(BUSY, why))


def _check(wanted: Open) -> None:
    """Raise ``Refused`` for what is beyond the bounds of an opening."""
    if wanted.mode not in (SPLIT, STREAM) or len(wanted.task) > LONGEST_TASK:
        raise Refused(INVALID, f"the mode must be SPLIT or STREAM, the task at most {LONGEST_TASK} characters")
    if len(wanted.stop) > MOST_STOPS or any(len(text) > LONGEST_STOP for text in wanted.stop):
        raise Refused(INVALID, f"at most {MOST_STOPS} stop strings of at most {LONGEST_STOP} characters each")


def token_digest(token: str) -> bytes:
    """What is kept of a token."""
    return hashlib.sha256(token.encode()).digest()
