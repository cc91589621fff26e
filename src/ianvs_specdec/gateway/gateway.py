"""Two engines and the router between them, behind the interface of one engine.

Each router's decision is in a thread, and what routers learn of answers in one further thread. Nothing of a request is
written to disk.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, InvalidStateError, ThreadPoolExecutor
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

from msgspec import structs

from ianvs_specdec.common.errors import AbandonedError, AnswerError
from ianvs_specdec.common.types import Completion
from ianvs_specdec.gateway.case import Case, parts
from ianvs_specdec.gateway.legs import ChatRow, Leg, RoutedJob, response_to
from ianvs_specdec.gateway.metrics import GatewayMetrics
from ianvs_specdec.gateway.policies import policy
from ianvs_specdec.plugin import edge_first, observers
from ianvs_specdec.plugin.requests import EarlyExit
from ianvs_specdec.records.identity import FileDigests
from ianvs_specdec.records.response import Response
from ianvs_specdec.routing.routers.base import in_words
from ianvs_specdec.routing.routers.budget import BudgetRouter
from ianvs_specdec.routing.routers.lifelong import LifelongRouter
from ianvs_specdec.routing.routers.privacy import PrivacyRouter
from ianvs_specdec.serving.engine import Engine, Event, Job, queue_full, shutting_down
from ianvs_specdec.serving.metrics import Metrics
from ianvs_specdec.serving.refusal import Refusal
from ianvs_specdec.serving.requests import ChatRequest

log = logging.getLogger(__name__)

LAST_DECISIONS = 10.0
"""Seconds that routers have at shutdown, before the models are closed."""
REMEMBERED = 10_000
"""Answers that feedback may still come on."""
RECORDED = ("router", "score", "hard", "seconds", "reason")


class Gateway:
    """``queue``: requests that may wait for the router, and for each side; ``concurrency``: those that a side works on
    at the same time, if its back end can; ``fallback``: seconds after which the edge answers if the cloud has not begun
    to, or as soon as that has failed; None: never. The models must be loaded. All methods are called on the event loop
    but those of ``edge_first.Edge``.
    """

    def __init__(self, case: Case, queue: int, concurrency: int, fallback: float | None = None) -> None:
        self._case, self._fallback = case, fallback
        metrics = {name: Metrics(side.name, side.backend) for name, side in case.sides.items()}
        self.metrics = GatewayMetrics(metrics)
        places = {name: concurrency if side.llm.concurrent else 1 for name, side in case.sides.items()}
        self._engines = {
            name: Engine(side.llm, queue, places[name], metrics[name]) for name, side in case.sides.items()
        }
        # A decision may wait for the edge's answer.
        self._routes = [threading.Thread(target=self._route, name="route", daemon=True) for _ in range(places["edge"])]
        self._undecided: SimpleQueue[tuple[RoutedJob, Any] | None] = SimpleQueue()
        self._most = places["edge"] + queue
        self._after = ThreadPoolExecutor(1, thread_name_prefix="observe")
        # A router that keeps a state is asked by one at a time, unless it says otherwise.
        own = getattr(case.router, "concurrent", False)
        self._asking = contextlib.nullcontext() if own else threading.Lock()
        self._jobs: set[RoutedJob] = set()
        self._deciding = 0
        routers = tuple(parts(case.router))
        self._about_rows = {"slo": case.slo, "whole": any(isinstance(part, PrivacyRouter) for part in routers)}
        self._budgets = [part for part in routers if isinstance(part, BudgetRouter)]
        self._lifelong = next((part for part in routers if isinstance(part, LifelongRouter)), None)
        if self._lifelong is not None:
            self._lifelong.judged_elsewhere()
        self._lessons: OrderedDict[str, Callable[[float], None]] = OrderedDict()
        self.draining = False
        edge_first.set_current(self)
        for thread in self._routes:
            thread.start()

    def submit(self, chat: ChatRequest) -> Job:
        """Have the router decide, or ask the side that is named. The chat has the edge's defaults. Raises Refusal."""
        if self.draining:
            raise shutting_down()
        chats = {"edge": chat, "cloud": chat.with_defaults(self._case.sides["cloud"].settings.sampling)}
        if self._case.sides["edge"].settings.sampling.logprobs:
            # A router may look at them, whether the client wants them or not.
            chats["edge"] = replace(chats["edge"], sampling=replace(chats["edge"].sampling, logprobs=True))
        job = RoutedJob(chat, chats, self._about_rows)
        if chat.model in self._engines:
            job.routing = {"side": chat.model, "model": self._case.sides[chat.model].name}
            job.leg = self._start(job, chat.model)
        else:
            if chat.prompts or chat.n > 1:
                message = "the router decides on chats with one choice: leave n out, or ask the model edge or cloud"
                raise Refusal(400, message, param="n" if chat.n > 1 else "model")
            router = policy(self._case.router, chat.model)
            if self._deciding == self._most:
                raise queue_full(self._deciding, 1)
            self._deciding += 1
            self._undecided.put((job, router))
        self._jobs.add(job)
        return job

    def lesson(self, name: str) -> Callable[[float], None]:
        """Takes what the answer of this id was worth, from 0 to 1, once. Raises Refusal where nobody learns from it."""
        if self._lifelong is None:
            message = f"{type(self._case.router).__name__} does not learn from feedback; LifelongRouter does"
            raise Refusal(409, message, code="no_feedback")
        if name not in self._lessons:
            message = f"no answer of the router with the id {name[:64]!r} waits for feedback, of the last {REMEMBERED}"
            raise Refusal(404, message, param="id", code="answer_not_found")
        return self._lessons.pop(name)

    def end(self, job: Job, refusal: Refusal) -> None:
        """Give a job up, wherever it is; does nothing when it is over."""
        assert isinstance(job, RoutedJob)
        if job.over:
            return
        self._finish(job, refusal)
        for leg in (job.leg, job.edge):
            if leg is not None:
                self._engines[leg.side].end(leg, refusal)

    def end_all(self) -> None:
        for job in tuple(self._jobs):
            self.end(job, shutting_down())

    def close(self) -> None:
        """Routers first: they may ask the models. One that blocks is left behind."""
        until = time.monotonic() + LAST_DECISIONS
        for _ in self._routes:
            self._undecided.put(None)
        for thread in self._routes:
            thread.join(max(0.0, until - time.monotonic()))
        for engine in self._engines.values():
            engine.close()
        self._after.shutdown()
        if hasattr(self._case.router, "cleanup"):
            self._case.router.cleanup()

    def emulation(self) -> Mapping[str, Any] | None:
        told = {side: about for side, engine in self._engines.items() if (about := engine.emulation())}
        return told or None

    def _route(self) -> None:
        """In a thread."""
        for job, router in iter(self._undecided.get, None):
            outcome: bool | Exception = False
            try:
                if not job.over:
                    data = edge_first.request_answer(job.row) if self._case.edge_first else job.row
                    with self._asking:
                        outcome = bool(router(data))
                    if self._lifelong is not None:
                        job.lesson = self._lifelong.lesson(job.row.parsed)
            except Exception as error:
                outcome = error
            # The loop is closed when the server was stopped at once.
            with contextlib.suppress(RuntimeError):
                job.loop.call_soon_threadsafe(self._decided, job, router, outcome)

    def _decided(self, job: RoutedJob, router: Any, outcome: bool | Exception) -> None:
        self._deciding -= 1
        if job.over:
            self._abandon(job)
            return
        with self._ending(job):
            if isinstance(outcome, Exception):
                raise outcome
            if job.answered.done() and isinstance(full := job.answered.result(), Refusal) and job.edge is None:
                self._finish(job, full)
                return
            side = "cloud" if outcome else "edge"
            record = job.row.get("routing") or {"router": type(router).__name__, "hard": outcome}
            self.metrics.decided(side, record.get("seconds"))
            self._send(job, side, {name: record[name] for name in RECORDED if name in record})

    @contextlib.contextmanager
    def _ending(self, job: RoutedJob) -> Iterator[None]:
        """An error in it ends the request."""
        try:
            yield
        except Exception as error:
            log.error("the router failed: %s", in_words(error.__cause__ or error, message=False))
            message = "the router failed; the server's log says why"
            self._finish(job, Refusal(500, message, kind="server_error", outcome="failed"))

    def _send(self, job: RoutedJob, side: str, record: Mapping[str, Any]) -> None:
        """Have ``side`` answer; the edge, where the router has asked it, has done so."""
        job.routing = {**record, "side": side, "model": self._case.sides[side].name}
        if side == "edge" and job.edge is not None and isinstance(answer := job.edge.outcome, Completion):
            for piece, tokens in job.edge.pieces:
                job.tokens = tokens
                job.tell(piece)
            self._finish(job, answer)
            return
        try:
            job.leg = self._start(job, side)
        except Refusal as refusal:
            self._failed(job, refusal)
            return
        if side == "cloud" and self._fallback is not None and not job.edge_failed:
            reason = f"the cloud had not begun after {self._fallback:g} s"
            job.timer = job.loop.call_later(self._fallback, self._fall_back, job, reason)

    def _start(self, job: RoutedJob, side: str) -> Leg:
        """Raises Refusal where the side has no room."""
        leg = Leg(job.chats[side], side, functools.partial(self._heard, job))
        try:
            self._engines[side].take(leg)
        except Refusal as refusal:
            self.metrics.sides[side].outcome(refusal.outcome)
            raise
        observers.began(side, job.row)
        return leg

    def _heard(self, job: RoutedJob, leg: Leg, event: Event) -> None:
        """From the engine of a side."""
        if not isinstance(event, str):
            self._ended(job, leg, event)
        elif leg is job.edge:
            leg.pieces.append((event, leg.tokens))
        if leg is not job.leg or job.over:
            return
        if isinstance(event, str):
            if job.timer is not None:
                job.timer.cancel()
            # A thought that comes apart from the answer is the empty text.
            if event:
                job.begun, job.tokens = True, leg.tokens
                job.tell(event)
        elif isinstance(event, Refusal):
            self._failed(job, event)
        else:
            self._finish(job, event)

    def _ended(self, job: RoutedJob, leg: Leg, event: Completion | Refusal) -> None:
        leg.outcome = event
        side = self._case.sides[leg.side]
        if isinstance(event, Completion):
            self.metrics.cost.labels(leg.side).inc(side.cost(event) or 0.0)
        self._after.submit(self._learn, job, leg, event)

    def _learn(self, job: RoutedJob, leg: Leg, event: Completion | Refusal) -> None:
        """In a thread, as it takes a while. Routers hear of the edge's answer before they decide on it."""
        try:
            response = response_to(job.row, event, leg.side, self._case.sides[leg.side])
            observers.ended(leg.side, job.row, response)
        except Exception as error:
            log.error("a router did not learn: %s", in_words(error.__cause__ or error, message=False))
        finally:
            # The request may have been given up meanwhile.
            with contextlib.suppress(InvalidStateError):
                if leg is job.edge:
                    job.answered.set_result(event)

    def _abandon(self, job: RoutedJob) -> None:
        """No side will answer: budgets get back what was set aside, after all that sides have done."""
        for budget in self._budgets:
            self._after.submit(budget.abandoned, job.row)

    def _failed(self, job: RoutedJob, refusal: Refusal) -> None:
        """The side that was to answer does not. What the client has not seen can still come from the edge."""
        routing = job.routing or {}
        routed = routing["side"] == "cloud" and "router" in routing
        seen = job.chat.stream and job.begun
        if self._fallback is None or not routed or seen or job.edge_failed:
            self._finish(job, refusal)
        else:
            self._fall_back(job, f"the cloud failed ({refusal.body['error']['code'] or refusal.status})")

    def _fall_back(self, job: RoutedJob, reason: str) -> None:
        """The edge answers in place of the cloud, whose work is given up."""
        abandoned, job.leg, job.fell_back = job.leg, None, True
        if job.timer is not None:
            job.timer.cancel()
        with self._ending(job):
            if abandoned is not None:
                self._engines["cloud"].end(abandoned, Refusal(504, reason, outcome="deadline"))
            self._send(job, "edge", {**(job.routing or {}), "reason": f"fallback: {reason}"})

    def _finish(self, job: RoutedJob, event: Completion | Refusal) -> None:
        job.over = True
        self._jobs.discard(job)
        job.answered.cancel()
        if job.timer is not None:
            job.timer.cancel()
        if job.leg is None:
            self._abandon(job)
        if job.fell_back and isinstance(event, Completion):
            self.metrics.fallbacks.inc()
        self.metrics.outcome(event.outcome if isinstance(event, Refusal) else "completed")
        if isinstance(event, Completion) and job.lesson is not None and job.routing is not None:
            self._lessons[job.chat.id] = functools.partial(job.lesson, job.routing["side"])
            if len(self._lessons) > REMEMBERED:
                self._lessons.popitem(last=False)
        if isinstance(event, Completion) and not (job.chat.given.get("logprobs") or job.chat.details):
            event = structs.replace(event, trace=structs.replace(event.trace, confidence=None))
        outcomes = [(leg.side, leg.outcome) for leg in {job.leg, job.edge} if leg is not None]
        costs = [self._case.sides[side].cost(answer) for side, answer in outcomes if isinstance(answer, Completion)]
        if paid := [cost for cost in costs if cost is not None]:
            job.routing = {**(job.routing or {}), "cost": sum(paid)}
        job.tell(event)

    # The edge as routers ask it, each from its own thread.

    def answer(self, data: ChatRow, *, early: EarlyExit | None) -> Response:
        """An edge that fails leaves an ``error``, as in a test case."""
        job = data.job

        def ask() -> None:
            if job.over or job.edge is not None or job.answered.done():
                return
            with self._ending(job):
                try:
                    job.edge = self._start(job, "edge")
                except Refusal as refusal:
                    job.answered.set_result(refusal)

        job.loop.call_soon_threadsafe(ask)
        try:
            return response_to(data, job.answered.result(), "edge", self._case.sides["edge"])
        except CancelledError:
            raise AbandonedError from None

    def encode(self, data: ChatRow, layers: Sequence[int], check: edge_first.ModelCheck) -> edge_first.Encoding | None:
        side, chat = self._case.sides["edge"], data.job.chats["edge"]
        side.llm.check_encode()
        check(side.settings.general.model, self._model_files)
        try:
            found = side.llm.encode(chat.messages, chat.sampling, layers)
        except AnswerError:
            return None
        return edge_first.Encoding(found.states, Response(prefill={"seconds": found.seconds}))

    @functools.cached_property
    def _model_files(self) -> str:
        return str(self._case.sides["edge"].llm.identity(FileDigests(None))["model"])

    def backend(self) -> str:
        return self._case.sides["edge"].backend
