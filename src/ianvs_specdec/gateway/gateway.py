"""Two engines and a router, with the interface of one engine.

Routers decide in threads, and learn from answers in one further thread. Nothing of a request is written to disk.
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

from ianvs_specdec.common.errors import AnswerError, RequestCancelledError
from ianvs_specdec.common.types import Completion
from ianvs_specdec.gateway.case import Case, nested_routers
from ianvs_specdec.gateway.jobs import ChatRow, RoutedJob, SideJob, response_to
from ianvs_specdec.gateway.metrics import GatewayMetrics
from ianvs_specdec.gateway.models import router_named
from ianvs_specdec.plugin import edge_first, observers
from ianvs_specdec.plugin.requests import EarlyExit
from ianvs_specdec.records.identity import FileDigests
from ianvs_specdec.records.response import Response
from ianvs_specdec.routing.routers.base import describe_error
from ianvs_specdec.routing.routers.budget import BudgetRouter
from ianvs_specdec.routing.routers.lifelong import LifelongRouter
from ianvs_specdec.routing.routers.privacy import PrivacyRouter
from ianvs_specdec.serving.engine import Event, Job, RequestQueue, queue_full, shutting_down
from ianvs_specdec.serving.metrics import Metrics
from ianvs_specdec.serving.protocol import RequestError
from ianvs_specdec.serving.requests import ChatRequest

log = logging.getLogger(__name__)

ROUTER_SECONDS = 10.0
"""Time for routers to finish at shutdown, before the models are closed."""
MAX_FEEDBACK = 10_000
"""Number of answers that accept feedback."""
REPORTED = ("router", "score", "hard", "seconds", "reason")


class Gateway:
    """``queue``: maximum requests that wait for the router, and for each side; ``concurrency``: requests in progress
    per side; ``fallback``: seconds after which the edge answers if the cloud has not begun or has failed, None = never.

    The models must be loaded. Called on the event loop, except for the methods of ``edge_first.Edge``.
    """

    def __init__(self, case: Case, queue: int, concurrency: int, fallback: float | None = None) -> None:
        self._case, self._fallback = case, fallback
        metrics = {name: Metrics(side.name, side.backend) for name, side in case.sides.items()}
        self.metrics = GatewayMetrics(metrics)
        slots = {name: concurrency if side.llm.concurrent else 1 for name, side in case.sides.items()}
        self._engines = {
            name: RequestQueue(side.llm, queue, slots[name], metrics[name]) for name, side in case.sides.items()
        }
        # As many as the edge has slots: a decision may wait for the edge's answer.
        self._threads = [threading.Thread(target=self._route, name="route", daemon=True) for _ in range(slots["edge"])]
        self._undecided: SimpleQueue[tuple[RoutedJob, Any] | None] = SimpleQueue()
        self._max_deciding = slots["edge"] + queue
        self._observers = ThreadPoolExecutor(1, thread_name_prefix="observe")
        # Routers may have a state: one decision at a time, unless they are concurrent.
        concurrent = getattr(case.router, "concurrent", False)
        self._router_lock = contextlib.nullcontext() if concurrent else threading.Lock()
        self._jobs: set[RoutedJob] = set()
        self._deciding = 0
        routers = tuple(nested_routers(case.router))
        self._full_rows = any(isinstance(router, PrivacyRouter) for router in routers)
        self._budgets = [router for router in routers if isinstance(router, BudgetRouter)]
        self._lifelong = next((router for router in routers if isinstance(router, LifelongRouter)), None)
        if self._lifelong is not None:
            self._lifelong.disable_scorer()
        self._feedback: OrderedDict[str, Callable[[float], None]] = OrderedDict()
        self.draining = False
        edge_first.set_current(self)
        for thread in self._threads:
            thread.start()

    def submit(self, chat: ChatRequest) -> Job:
        """Route a request, or send it to the side that it names. It has the edge's defaults. Raises RequestError."""
        if self.draining:
            raise shutting_down()
        chats = {"edge": chat, "cloud": chat.with_defaults(self._case.sides["cloud"].settings.sampling)}
        if self._case.sides["edge"].settings.sampling.logprobs:
            # For routers, even if the client does not request them.
            chats["edge"] = replace(chats["edge"], sampling=replace(chats["edge"].sampling, logprobs=True))
        job = RoutedJob(chat, chats, self._case.slo, self._full_rows)
        if chat.model in self._engines:
            job.routing = {"side": chat.model, "model": self._case.sides[chat.model].name}
            job.selected = self._start(job, chat.model)
        else:
            if chat.prompts or chat.n > 1:
                message = "the router decides on chats with one choice: leave n out, or use the model edge or cloud"
                raise RequestError(400, message, param="n" if chat.n > 1 else "model")
            router = router_named(self._case.router, chat.model)
            if self._deciding == self._max_deciding:
                raise queue_full(self._deciding, 1)
            self._deciding += 1
            self._undecided.put((job, router))
        self._jobs.add(job)
        return job

    def feedback(self, name: str) -> Callable[[float], None]:
        """A function that takes the score (0 to 1) of the answer with this id, once. Raises RequestError."""
        if self._lifelong is None:
            message = f"{type(self._case.router).__name__} does not learn from feedback; LifelongRouter does"
            raise RequestError(409, message, code="no_feedback")
        if name not in self._feedback:
            message = f"the id {name[:64]!r} is not one of the last {MAX_FEEDBACK} routed answers without feedback"
            raise RequestError(404, message, param="id", code="answer_not_found")
        return self._feedback.pop(name)

    def end(self, job: Job, error: RequestError) -> None:
        """Cancel a job; no effect if it has finished."""
        assert isinstance(job, RoutedJob)
        if job.finished:
            return
        self._finish(job, error)
        for side_job in (job.selected, job.edge):
            if side_job is not None:
                self._engines[side_job.side].end(side_job, error)

    def end_all(self) -> None:
        for job in tuple(self._jobs):
            self.end(job, shutting_down())

    def close(self) -> None:
        """Stop routers first: they may use the models. Those that block are left behind."""
        until = time.monotonic() + ROUTER_SECONDS
        for _ in self._threads:
            self._undecided.put(None)
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        for engine in self._engines.values():
            engine.close()
        self._observers.shutdown()
        if hasattr(self._case.router, "cleanup"):
            self._case.router.cleanup()

    def emulation(self) -> Mapping[str, Any] | None:
        return {side: about for side, engine in self._engines.items() if (about := engine.emulation())} or None

    def _route(self) -> None:
        """Runs in a thread."""
        for job, router in iter(self._undecided.get, None):
            outcome: bool | Exception = False
            try:
                if not job.finished:
                    data = edge_first.request_answer(job.row) if self._case.edge_first else job.row
                    with self._router_lock:
                        outcome = bool(router(data))
                    if self._lifelong is not None:
                        job.learn = self._lifelong.feedback_callback(job.row.parsed)
            except Exception as error:
                outcome = error
            # The loop is closed if the server was stopped at once.
            with contextlib.suppress(RuntimeError):
                job.loop.call_soon_threadsafe(self._decided, job, router, outcome)

    def _decided(self, job: RoutedJob, router: Any, outcome: bool | Exception) -> None:
        self._deciding -= 1
        if job.finished:
            self._refund(job)
            return
        with self._router_errors(job):
            if isinstance(outcome, Exception):
                raise outcome
            if job.answered.done() and isinstance(full := job.answered.result(), RequestError) and job.edge is None:
                self._finish(job, full)
                return
            side = "cloud" if outcome else "edge"
            record = job.row.get("routing") or {"router": type(router).__name__, "hard": outcome}
            self.metrics.decided(side, record.get("seconds"))
            self._send(job, side, {name: record[name] for name in REPORTED if name in record})

    @contextlib.contextmanager
    def _router_errors(self, job: RoutedJob) -> Iterator[None]:
        """An error of the router ends the request."""
        try:
            yield
        except Exception as error:
            log.error("the router failed: %s", describe_error(error.__cause__ or error, message=False))
            message = "the router failed; the server's log says why"
            self._finish(job, RequestError(500, message, kind="server_error", outcome="failed"))

    def _send(self, job: RoutedJob, side: str, record: Mapping[str, Any]) -> None:
        """Have ``side`` answer. If the router has already requested the edge's answer, it is used."""
        job.routing = {**record, "side": side, "model": self._case.sides[side].name}
        if side == "edge" and job.edge is not None and isinstance(answer := job.edge.outcome, Completion):
            for piece, tokens in job.edge.pieces:
                job.tokens = tokens
                job.emit(piece)
            self._finish(job, answer)
            return
        try:
            job.selected = self._start(job, side)
        except RequestError as error:
            self._failed(job, error)
            return
        if side == "cloud" and self._fallback is not None and not job.edge_failed:
            reason = f"the cloud had not begun after {self._fallback:g} s"
            job.timer = job.loop.call_later(self._fallback, self._fall_back, job, reason)

    def _start(self, job: RoutedJob, side: str) -> SideJob:
        """Raises RequestError if the side's queue is full."""
        side_job = SideJob(job.chats[side], side, functools.partial(self._on_event, job))
        try:
            self._engines[side].start(side_job)
        except RequestError as error:
            self.metrics.sides[side].outcome(error.outcome)
            raise
        observers.began(side, job.row)
        return side_job

    def _on_event(self, job: RoutedJob, side_job: SideJob, event: Event) -> None:
        """An event of a side's engine."""
        if not isinstance(event, str):
            self._ended(job, side_job, event)
        elif side_job is job.edge:
            side_job.pieces.append((event, side_job.tokens))
        if side_job is not job.selected or job.finished:
            return
        if isinstance(event, str):
            if job.timer is not None:
                job.timer.cancel()
            # An API's separate thought arrives as empty pieces.
            if event:
                job.begun, job.tokens = True, side_job.tokens
                job.emit(event)
        elif isinstance(event, RequestError):
            self._failed(job, event)
        else:
            self._finish(job, event)

    def _ended(self, job: RoutedJob, side_job: SideJob, event: Completion | RequestError) -> None:
        side_job.outcome = event
        side = self._case.sides[side_job.side]
        if isinstance(event, Completion):
            self.metrics.cost.labels(side_job.side).inc(side.cost(event) or 0.0)
        self._observers.submit(self._observe, job, side_job, event)

    def _observe(self, job: RoutedJob, side_job: SideJob, event: Completion | RequestError) -> None:
        """Runs in a thread. Routers observe the edge's answer before they decide on it."""
        try:
            response = response_to(job.row, event, side_job.side, self._case.sides[side_job.side])
            observers.ended(side_job.side, job.row, response)
        except Exception as error:
            log.error("a router did not learn: %s", describe_error(error.__cause__ or error, message=False))
        finally:
            # The request may have been cancelled.
            with contextlib.suppress(InvalidStateError):
                if side_job is job.edge:
                    job.answered.set_result(event)

    def _refund(self, job: RoutedJob) -> None:
        """No side answers: release the reservation in budgets, after all pending observations."""
        for budget in self._budgets:
            self._observers.submit(budget.refund, job.row)

    def _failed(self, job: RoutedJob, error: RequestError) -> None:
        """The selected side failed. The edge may still answer if the client has received nothing."""
        routing = job.routing or {}
        routed = routing["side"] == "cloud" and "router" in routing
        sent = job.chat.stream and job.begun
        if self._fallback is None or not routed or sent or job.edge_failed:
            self._finish(job, error)
        else:
            self._fall_back(job, f"the cloud failed ({error.body['error']['code'] or error.status})")

    def _fall_back(self, job: RoutedJob, reason: str) -> None:
        """Cancel the cloud's work; the edge answers."""
        cancelled, job.selected, job.fell_back = job.selected, None, True
        if job.timer is not None:
            job.timer.cancel()
        with self._router_errors(job):
            if cancelled is not None:
                self._engines["cloud"].end(cancelled, RequestError(504, reason, outcome="deadline"))
            self._send(job, "edge", {**(job.routing or {}), "reason": f"fallback: {reason}"})

    def _finish(self, job: RoutedJob, event: Completion | RequestError) -> None:
        job.finished = True
        self._jobs.discard(job)
        job.answered.cancel()
        if job.timer is not None:
            job.timer.cancel()
        if job.selected is None:
            self._refund(job)
        costs = []
        for done in {job.selected, job.edge} - {None}:
            if done is not None and isinstance(done.outcome, Completion):
                costs.append(self._case.sides[done.side].cost(done.outcome))
        if paid := [cost for cost in costs if cost is not None]:
            job.routing = {**(job.routing or {}), "cost": sum(paid)}
        self.metrics.outcome(event.outcome if isinstance(event, RequestError) else "completed")
        if isinstance(event, Completion):
            self.metrics.fallbacks.inc(job.fell_back)
            if job.learn is not None and job.routing is not None:
                self._feedback[job.chat.id] = functools.partial(job.learn, job.routing["side"])
                if len(self._feedback) > MAX_FEEDBACK:
                    self._feedback.popitem(last=False)
            if not (job.chat.params.get("logprobs") or job.chat.details):
                event = structs.replace(event, trace=structs.replace(event.trace, confidence=None))
        job.emit(event)

    # The interface ``edge_first.Edge``, for routers in their threads.

    def answer(self, data: ChatRow, *, early: EarlyExit | None) -> Response:
        """The edge's response, with an ``error`` if it failed, as in a test case."""
        job = data.job

        def start() -> None:
            if job.finished or job.edge is not None or job.answered.done():
                return
            with self._router_errors(job):
                try:
                    job.edge = self._start(job, "edge")
                except RequestError as error:
                    job.answered.set_result(error)

        job.loop.call_soon_threadsafe(start)
        try:
            return response_to(data, job.answered.result(), "edge", self._case.sides["edge"])
        except CancelledError:
            raise RequestCancelledError from None

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
