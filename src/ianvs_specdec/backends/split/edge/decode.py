"""One answer by an edge and a verifier: drafts go up, verdicts come down, and what is confirmed is put out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ianvs_specdec.backends.split.edge.connection import Connection
from ianvs_specdec.backends.split.edge.controller import Controller
from ianvs_specdec.backends.split.edge.drafts import Drafts, FarTarget
from ianvs_specdec.backends.split.edge.outlook import Chances
from ianvs_specdec.backends.split.edge.session import Alone, Anew, Event, Outage, Session
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Sampling, Step, Trace
from ianvs_specdec.engine import Decoded, Drafter
from ianvs_specdec.net.split.split_pb2 import SPLIT, STREAM, Draft, End, Model, Open, Pong, Up, Verdict
from ianvs_specdec.net.split.wire import TENTHS, set_sampling

PINGED = 16
"""Messages of streamed tokens between two looks at how long the way is."""

OnTokens = Callable[[list[int]], None]
Finish = Callable[[Sequence[int], Sampling], Decoded]
"""The rest of an answer without a verifier: of the tokens so far."""


@dataclass
class Answer(Decoded):
    """``trace.bytes_up`` and ``bytes_down`` are those of the messages, with what gRPC puts before each; HTTP/2, TLS and
    TCP add theirs. For ``ahead`` and ``hits`` see ``Drafts``. ``streamed`` tokens were drafted by the verifier.
    ``breaks`` counts streams that broke, ``lost`` the seconds without one; ``alone`` the last tokens that are the
    edge's own, and ``why`` says why. ``in_flight`` drafts may be on their way at a time; ``waits`` are the rounds whose
    draft was not sent ahead, and ``drafting`` the seconds in which nothing was on its way because the edge drafted; the
    others took ``hidden`` seconds to draft.
    ``prefill`` and ``work`` are the verifier's seconds until the first token and since, without the waits for drafts;
    None where it could not tell."""

    ahead: int = 0
    hits: int = 0
    streamed: int = 0
    breaks: int = 0
    lost: float = 0.0
    alone: int = 0
    why: str = ""
    in_flight: int = 1
    waits: int = 0
    drafting: float = 0.0
    hidden: float = 0.0
    prefill: float | None = None
    work: float | None = None


class Edge:
    """``finish`` writes the rest of an answer where the policy for outages is to; None = nothing can."""

    def __init__(
        self,
        connection: Connection,
        model: Model,
        drafter: Drafter,
        target: FarTarget,
        controller: Controller,
        outage: Outage,
        in_flight: int = 1,
        finish: Finish | None = None,
    ) -> None:
        self._connection, self._model, self._drafter, self._target = connection, model, drafter, target
        self._controller, self._outage, self._finish = controller, outage, finish
        self._chances = Chances()
        self._heard: float | None = None
        """When output came last; None where what comes next was waited for with another mode."""
        self._asked: float | None = None
        """When the verifier was asked how long the way is; None where that is answered."""
        self._unasked = 0
        """Messages of streamed tokens since."""
        self._in_flight = min(in_flight, int(model.limits.in_flight))

    def decode(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        *,
        prediction: Sequence[int] = (),
        task: str = "",
        on_tokens: OnTokens | None = None,
    ) -> Answer:
        """Continue ``prompt`` as the verifier's target would. Raises ``AnswerError`` where there is no answer."""
        began, before = time.perf_counter(), (self._connection.up, self._connection.down)
        model, trace = self._model, Trace()
        opening = Open(fingerprint=model.fingerprint, prompt=prompt, task=task)
        set_sampling(opening, sampling)
        opening.mode = STREAM if self._controller.streams else SPLIT
        drafts = Drafts(self._drafter.fork(), self._target, self._chances, prompt, sampling, prediction)
        answer = Answer([], "", trace, in_flight=self._in_flight)
        self._heard = self._asked = None

        def put_out(tokens: list[int]) -> None:
            if tokens:
                trace.chunks.append((time.perf_counter() - began, len(tokens)))
                answer.token_ids += tokens
                if on_tokens is not None:
                    on_tokens(tokens)

        session: Session | None = None
        try:

            def redraft(most: int) -> Draft | None:
                return drafts.anew(self._controller.choose(most), model.ends)

            session = Session(self._connection, model, opening, self._outage, redraft)
            while session.end is None:
                self._take(session, drafts, self._wait(session, drafts), answer, put_out)
            end = session.end
            answer.finish_reason = end.finish_reason
            if session.opened == 1 and end.prefill:
                answer.prefill, answer.work = end.prefill / TENTHS, end.work / TENTHS
        except Alone as alone:
            self._go_on_alone(answer, drafts, sampling, str(alone), put_out)
        finally:
            drafts.close()
            if session is not None:
                session.leave()
        if session is not None:
            answer.breaks, answer.lost = session.breaks, session.lost
        answer.ahead, answer.hits = drafts.ahead, drafts.hits
        answer.drafting, answer.hidden = drafts.unhidden, drafts.hidden
        trace.bytes_up, trace.bytes_down = self._connection.up - before[0], self._connection.down - before[1]
        return answer

    def _wait(self, session: Session, drafts: Drafts) -> Event:
        """Send what there is to send, draft ahead, and return what comes of it."""
        ends, controller = self._model.ends, self._controller
        while True:
            if session.steady and not drafts.on_their_way and controller.decide(session.budget) != session.streams:
                session.switch(controller.streams)
                self._heard = None
            if session.streams:
                self._ping(session)
                event = self._receive(session, drafts, wait=True)
                assert event is not None
                return event
            length = controller.choose(session.budget)
            if not session.fresh and drafts.on_their_way < self._in_flight:
                draft = drafts.next(length, ends)
                if draft is not None:
                    session.send(Up(draft=draft))
                    continue
            grown = drafts.grow(length, ends, controller.keeps_several(length))
            event = self._receive(session, drafts, wait=not grown)
            if event is not None:
                return event

    def _receive(self, session: Session, drafts: Drafts, wait: bool) -> Event | None:
        began = time.perf_counter()
        event = session.receive(wait)
        drafts.waited(time.perf_counter() - began)
        return event

    def _ping(self, session: Session) -> None:
        """Streamed tokens do not tell how far the verifier is, on which it depends whether they should be."""
        if self._controller.adapts and self._asked is None and self._unasked >= PINGED:
            self._asked, self._unasked = time.perf_counter(), 0
            session.ping()

    def _take(
        self, session: Session, drafts: Drafts, event: Event, answer: Answer, put_out: Callable[[list[int]], None]
    ) -> None:
        now = time.perf_counter()
        if isinstance(event, Verdict):
            sent, tokens = drafts.verdict(event.node, event.token)
            if not drafts.on_their_way:
                drafts.unhidden += now - session.arrived
            drafted = len(sent.tree) - 1
            answer.waits += sent.guess is None
            answer.trace.steps.append(Step(drafted, len(tokens) - 1, len(tokens), drafted + 1))
            self._controller.drafted(*drafts.taken())
            way = None if sent.guess is not None or sent.at is None else session.arrived - sent.at - session.seconds
            elapsed = None if self._heard is None else now - self._heard
            self._controller.answered(
                sent.tree.depth, len(tokens) - 1, session.seconds, way, elapsed, sent.ahead, sent.kept
            )
        elif isinstance(event, Pong):
            if self._asked is not None:
                self._controller.travelled(now - self._asked)
            self._asked = None
            return
        elif isinstance(event, End):
            return
        else:
            tokens = list(event.tokens)
            if tokens:
                drafts.confirm(tokens)
            if isinstance(event, Anew):
                self._asked = None
                if not event.sent:
                    drafts.void()
            elif answer.token_ids or len(tokens) > 1:
                # The first one is the prompt's; others may have come with it.
                answer.streamed += len(tokens) - (not answer.token_ids)
                self._unasked += 1
                if self._heard is not None:
                    self._controller.streamed(len(tokens), now - self._heard)
        # A draft that was sent before this came has its verdict sooner than rounds take.
        self._heard = None if isinstance(event, Anew) else now
        session.output += tokens
        put_out(tokens)

    def _go_on_alone(
        self, answer: Answer, drafts: Drafts, sampling: Sampling, why: str, put_out: Callable[[list[int]], None]
    ) -> None:
        if self._finish is None:
            raise UserError("policy edge needs a draft model, which can finish an answer: method draft_model")
        left = replace(sampling, max_tokens=drafts.context.remaining)
        decoded = self._finish(drafts.context.tokens, left)
        put_out(decoded.token_ids)
        answer.finish_reason, answer.alone, answer.why = decoded.finish_reason, len(decoded.token_ids), why
