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
from ianvs_specdec.backends.specdec import EngineLLM, SharedEngine
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.drafters.datastore import fingerprint
from ianvs_specdec.engine import Drafter, StopStrings
from ianvs_specdec.engine.request import Request
from ianvs_specdec.net.split import split_pb2 as pb
from ianvs_specdec.net.split.wire import read_sampling
from ianvs_specdec.records.identity import FileDigests
from ianvs_specdec.serving.protocol import served_name
from ianvs_specdec.serving.verifier.session import Metrics, Outbox, RemoteDrafter, Session, StreamError
from ianvs_specdec.serving.verifier.slices import Slices, SliceSession

log = logging.getLogger(__name__)

FINGERPRINT_BYTES = 8
"""Enough to distinguish models; not a proof of identity."""
WHOLE_DRAFT = "full"
"""Speculation length of a verifier without a drafter: drafts of edges are verified completely."""
FIRST_SECONDS = 10.0
"""Timeout for the first message of a client."""
MAX_TASK = 100
MAX_STOPS, MAX_STOP_LENGTH = 16, 1000
NANOS = 1e9


@dataclass(frozen=True)
class ServedModel(SharedEngine):
    """A loaded model of our engine. See ``split.proto`` for ``fingerprint`` and ``tokenizer``."""

    name: str
    fingerprint: bytes
    tokenizer: str


def load_model(llm: EngineLLM, length: Any, sessions: int) -> ServedModel:
    """Load ``llm`` for ``sessions`` sessions with the speculation length ``length``, None = that of its options.

    Raises ``UserError`` for a method that cannot continue an answer of another drafter.
    """
    own = getattr(llm.options, "length", WHOLE_DRAFT)
    shared = llm.shared(lengths.create(length or (WHOLE_DRAFT if llm.method == "autoregressive" else own)), sessions)
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


@dataclass(frozen=True)
class Limits:
    """Limits of clients: ``sessions`` at a time, tokens of a ``draft``, seconds to send a draft or read (``idle``)."""

    sessions: int = 256
    draft: int = 64
    idle: float = 60.0


class Service:
    """``tokens``: digests of the clients' tokens, None = no authentication. Used on the event loop."""

    def __init__(self, model: ServedModel, limits: Limits, tokens: Iterable[bytes] | None, counts: Metrics) -> None:
        self._model, self.limits, self._counts = model, limits, counts
        self._tokens = None if tokens is None else list(tokens)
        self._slices = Slices(model.target, limits.draft, limits.idle)
        self.sessions: set[Session | SliceSession] = set()
        self.draining = False

    @property
    def working(self) -> bool:
        """Whether any session has not ended."""
        return any(not session.ended for session in self.sessions)

    async def describe(self, question: pb.Question) -> pb.Model:
        model = self._model
        seconds = await self._slices.layer_seconds() if question.timed else 0.0
        return pb.Model(
            name=model.name,
            fingerprint=model.fingerprint,
            tokenizer=model.tokenizer,
            vocabulary=model.target.vocabulary,
            window=model.target.window or 0,
            ends=sorted(model.eos_ids),
            most_draft=self.limits.draft,
            layer=round(seconds * NANOS),
            numerics=self._slices.numerics,
        )

    @property
    def largest_slice(self) -> int:
        """Maximum bytes of the hidden states in one message."""
        return self._slices.largest

    def authorize(self, token: str) -> None:
        """Raises ``StreamError`` for an unknown token."""
        given = token_digest(token)
        if self._tokens is not None and not any(hmac.compare_digest(given, known) for known in self._tokens):
            self._counts.refused(pb.UNAUTHENTICATED)
            raise StreamError(
                pb.UNAUTHENTICATED, "the verifier does not know this token: --token-file names the file with it"
            )

    async def converse(self, outbox: Outbox, receive: Callable[[], Awaitable[pb.Up | None]]) -> None:
        """Serve one client. ``receive`` returns its messages, None at the end; ``outbox`` is closed at the end."""
        session: Session | SliceSession | None = None
        try:
            try:
                first = await asyncio.wait_for(receive(), FIRST_SECONDS)
            except TimeoutError:
                raise StreamError(pb.IDLE, f"nothing was sent within {FIRST_SECONDS:g} s") from None
            session = self._open(outbox, first)
            while (message := await receive()) is not None:
                session.take(message)
                if isinstance(session, SliceSession):
                    await session.room()
        except StreamError as error:
            if session is not None:
                session.end(error)
            else:
                self._counts.refused(error.code)
                outbox.close(pb.Down(error=error.to_message()))
        except Exception as error:
            log.error("a stream failed", exc_info=error)
            self._counts.refused(pb.FAILED)
            failed = StreamError(pb.FAILED, "this verifier failed; its log says why")
            outbox.close(pb.Down(error=failed.to_message()))
        finally:
            if session is not None:
                session.cancel()
                self.sessions.discard(session)

    def _open(self, outbox: Outbox, first: pb.Up | None) -> Session | SliceSession:
        if first is None or not (first.HasField("open") or first.HasField("cut")):
            message = "a session begins with Open or Cut: is this another version of ianvs-specdec?"
            raise StreamError(pb.INVALID, message)
        # An answer that has begun may continue: its connection broke, or its edge no longer drafts.
        if self.draining and not first.open.output:
            raise StreamError(pb.BUSY, "this verifier is shutting down: try again later, or use another one")
        if len(self.sessions) >= self.limits.sessions:
            raise StreamError(pb.BUSY, f"{len(self.sessions)} sessions are open, the maximum of this verifier")
        fingerprint, model = first.open.fingerprint or first.cut.fingerprint, self._model
        if fingerprint and fingerprint != model.fingerprint:
            reason = f"this verifier now serves {model.name}, another model than the session began with"
            raise StreamError(pb.ANOTHER_MODEL, f"{reason}: repeat the request, so that one model answers all of it")
        session = self._open_answer(outbox, first.open) if first.HasField("open") else self._cut(outbox, first.cut)
        self.sessions.add(session)
        return session

    def _cut(self, outbox: Outbox, cut: pb.Cut) -> SliceSession:
        session = self._slices.open(outbox, cut, self._counts)
        self._counts.opened(0)
        return session

    def _open_answer(self, outbox: Outbox, message: pb.Open) -> Session:
        model = self._model
        _check(message)
        remote = RemoteDrafter(self.limits.draft) if message.mode == pb.SPLIT else None
        session = Session(outbox, remote, model.batcher.wake, self.limits.idle, self._counts)
        session.request = self._request(message, remote or model.drafter.fork(), session.emit)
        model.batcher.submit(session.request, session.over)
        outbox.put(pb.Down(opened=pb.Opened()))
        self._counts.opened(len(message.prompt) + len(message.output))
        return session

    def _request(self, message: pb.Open, drafter: Drafter, emit: Callable[[list[int]], None]) -> Request:
        model = self._model
        try:
            sampling = read_sampling(message)
            return Request(
                model.target,
                drafter,
                [*message.prompt, *message.output],
                replace(sampling, max_tokens=sampling.max_tokens - len(message.output)),
                eos_ids=model.eos_ids,
                stop=StopStrings(model.text, sampling.stop).after(message.output) if sampling.stop else None,
                on_tokens=emit,
                rule="coupled",
                task=message.task,
            )
        except (ValueError, UserError) as error:
            raise StreamError(pb.INVALID, str(error)) from error

    def close(self) -> None:
        self._slices.close()

    def end_all(self, why: str) -> None:
        for session in tuple(self.sessions):
            session.end(StreamError(pb.BUSY, why))


def _check(message: pb.Open) -> None:
    """Raise ``StreamError`` if the message exceeds the limits."""
    if message.mode not in (pb.SPLIT, pb.STREAM) or len(message.task) > MAX_TASK:
        raise StreamError(pb.INVALID, f"the mode must be SPLIT or STREAM, the task at most {MAX_TASK} characters")
    if len(message.stop) > MAX_STOPS or any(len(text) > MAX_STOP_LENGTH for text in message.stop):
        raise StreamError(pb.INVALID, f"at most {MAX_STOPS} stop strings of at most {MAX_STOP_LENGTH} characters each")


def token_digest(token: str) -> bytes:
    """Tokens are kept as digests only."""
    return hashlib.sha256(token.encode()).digest()
