"""Decoding by an edge and a verifier: drafts go up, verdicts come down, confirmed tokens are emitted."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ianvs_specdec.backends.split.edge.connection import Connection
from ianvs_specdec.backends.split.edge.controller import Controller
from ianvs_specdec.backends.split.edge.drafts import Drafts, RemoteTarget
from ianvs_specdec.backends.split.edge.session import Event, FinishLocally, Outage, Reopened, Session
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Sampling, SplitTrace, Step, Trace
from ianvs_specdec.engine import Decoded, Drafter
from ianvs_specdec.net.split.split_pb2 import SPLIT, STREAM, Model, Open, Tokens, Verdict
from ianvs_specdec.net.split.wire import TENTHS, write_sampling

OnTokens = Callable[[list[int]], None]
Finish = Callable[[Sequence[int], Sampling], Decoded]
"""Generates the rest of an answer after the given tokens without a verifier."""


@dataclass
class Answer(Decoded):
    """``outage_reason``: why the edge generated the last tokens itself, "" if it did not.

    ``trace.bytes_up`` and ``bytes_down`` are those of messages with gRPC's prefix, without HTTP/2, TLS and TCP.
    """

    split: SplitTrace
    outage_reason: str = ""


@dataclass
class Edge:
    """A drafter and a connection to a verifier. ``finish``: for policy ``edge``, None if the drafter cannot."""

    connection: Connection
    model: Model
    drafter: Drafter
    target: RemoteTarget
    controller: Controller
    outage: Outage
    in_flight: int = 1
    finish: Finish | None = None

    def decode(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        *,
        prediction: Sequence[int] = (),
        task: str = "",
        on_tokens: OnTokens | None = None,
    ) -> Answer:
        """Continue ``prompt`` with the tokens of the verifier's model. Raises AnswerError."""
        before = self.connection.up, self.connection.down
        opening = Open(fingerprint=self.model.fingerprint, prompt=prompt, task=task)
        write_sampling(opening, sampling)
        drafts = Drafts(self.drafter.fork(), self.target, prompt, sampling, prediction)
        decoding = _Decoding(self, opening, drafts, on_tokens)
        try:
            decoding.run()
        except FinishLocally as outage:
            decoding.finish_locally(sampling, str(outage))
        finally:
            decoding.close()
        trace = decoding.answer.trace
        trace.bytes_up, trace.bytes_down = self.connection.up - before[0], self.connection.down - before[1]
        return decoding.answer


class _Decoding:
    """The state of one answer."""

    def __init__(self, edge: Edge, opening: Open, drafts: Drafts, on_tokens: OnTokens | None) -> None:
        self._edge, self._opening, self._drafts, self._on_tokens = edge, opening, drafts, on_tokens
        self._began = time.perf_counter()
        counts: dict[str, Any] = dict.fromkeys(("rounds", "waits", "ahead", "hits", "streamed", "breaks", "alone"), 0)
        seconds: dict[str, Any] = dict.fromkeys(("drafting", "hidden", "lost"), 0.0)
        self._split = SplitTrace(in_flight=edge.in_flight, **counts, **seconds)
        self.answer = Answer([], "", Trace(split=self._split), self._split)
        self._session: Session | None = None
        self._first = self._last = 0.0
        """When the first and the last tokens for the pace of this mode arrived."""
        self._count = 0
        """Tokens after the first of them."""

    def run(self) -> None:
        edge = self._edge
        self._opening.mode = STREAM if edge.controller.choose_mode() else SPLIT
        session = self._session = Session(edge.connection, edge.model, self._opening, edge.outage)
        if session.round_trip is not None and not session.breaks:
            edge.controller.opening = session.round_trip
        while session.end is None:
            self._take(session, self._wait(session))
        self._record_pace(session)
        end = session.end
        self.answer.finish_reason = end.finish_reason
        if session.opened == 1 and end.prefill:
            self._split.prefill, self._split.work = end.prefill / TENTHS, end.work / TENTHS

    def finish_locally(self, sampling: Sampling, reason: str) -> None:
        edge, answer, context = self._edge, self.answer, self._drafts.context
        if edge.finish is None:
            raise UserError("policy edge needs a draft model, which can finish an answer: method draft_model")
        decoded = edge.finish(context.tokens, replace(sampling, max_tokens=context.remaining))
        self._emit(decoded.token_ids)
        answer.finish_reason, answer.outage_reason = decoded.finish_reason, reason
        self._split.alone = len(decoded.token_ids)

    def close(self) -> None:
        self._drafts.close()
        split, drafts = self._split, self._drafts
        split.rounds = len(self.answer.trace.steps)
        split.ahead, split.hits, split.drafting = drafts.ahead, drafts.hits, drafts.exposed_seconds
        if self._session is not None:
            self._session.close()
            split.breaks, split.lost = self._session.breaks, self._session.lost

    def _wait(self, session: Session) -> Event:
        """Send a draft if none is in flight, draft ahead, and return the next event."""
        drafts, controller, ends = self._drafts, self._edge.controller, self._edge.model.ends
        length = 0 if session.streams or session.fresh else controller.choose_length(session.budget)
        if not (session.streams or session.fresh or drafts.sent):
            session.send(drafts.next(length, ends))
        while True:
            if len(drafts.sent) < self._edge.in_flight:
                session.send(drafts.next_ahead(length))
            grown = drafts.grow(length, ends)
            event = session.receive(wait=not grown)
            if event is not None:
                return event

    def _take(self, session: Session, event: Event) -> None:
        now = time.perf_counter()
        if isinstance(event, Verdict):
            tokens = self._judged(session, event, now)
        elif isinstance(event, Tokens):
            tokens = list(event.tokens)
            self._drafts.confirm(tokens)
            if session.streams:
                # The first token is the prompt's.
                self._split.streamed += len(tokens) - (not self.answer.token_ids)
        else:
            if isinstance(event, Reopened):
                self._record_pace(session)
                self._drafts.sent.clear()
            return
        self._edge.controller.service.add(session.seconds)
        if self._first:
            self._count += len(tokens)
        self._first, self._last = self._first or now, now
        session.output += tokens
        self._emit(tokens)

    def _judged(self, session: Session, verdict: Verdict, now: float) -> list[int]:
        drafts, controller = self._drafts, self._edge.controller
        sent, tokens = drafts.apply_verdict(verdict.node, verdict.token)
        if not drafts.sent:
            drafts.exposed_seconds += now - session.arrived
        drafted, accepted = len(sent.tree) - 1, len(tokens) - 1
        self.answer.trace.steps.append(Step(drafted, accepted, len(tokens), drafted + 1))
        controller.record_draft_time(*drafts.cost())
        controller.record_verdict(sent.tree.depth, accepted)
        if sent.ahead:
            self._split.hidden += len(sent.tree) * controller.measured["draft"]
        else:
            self._split.waits += 1
            controller.record_round_trip(session.arrived - sent.at - session.seconds)
        return tokens

    def _record_pace(self, session: Session) -> None:
        """Report the pace of the mode to the controller, and restart it."""
        self._edge.controller.record_answer(session.streams, self._count, self._last - self._first)
        self._first, self._count = 0.0, 0

    def _emit(self, tokens: list[int]) -> None:
        if tokens:
            self.answer.trace.chunks.append((time.perf_counter() - self._began, len(tokens)))
            self.answer.token_ids += tokens
            if self._on_tokens is not None:
                self._on_tokens(tokens)
