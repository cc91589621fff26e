"""Two engines and the router between them, behind the interface of one engine.

All of it happens on the event loop but the router's decisions, each in a thread of its own, and what is told to routers
about answers, in one further thread. A request that is decided is a job of the side's engine, whose events go to the
client as they come. Nothing of a request is written to disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from typing import Any

from ianvs_specdec.common.types import Completion
from ianvs_specdec.gateway.case import SIDES, Case
from ianvs_specdec.gateway.edge import AskedEdge, response_to
from ianvs_specdec.gateway.legs import Leg, RoutedJob, routing_of
from ianvs_specdec.gateway.metrics import GatewayMetrics
from ianvs_specdec.gateway.policies import policy
from ianvs_specdec.plugin import edge_first, observers
from ianvs_specdec.serving.engine import Engine, Event, Job, shutting_down
from ianvs_specdec.serving.protocol import ChatRequest, served_name
from ianvs_specdec.serving.refusal import Refusal

log = logging.getLogger(__name__)

FEWEST_DECISIONS = 4
"""Decisions at the same time, where the edge answers fewer requests."""


class Gateway:
    """``engines``: those of the sides, whose models are loaded; ``concurrency``: decisions at the same time, of which
    ``queue`` more may wait; ``fallback``: after this number of seconds without a piece of the cloud's answer, or when
    it has failed before, the edge answers; None: never. All methods are called on the event loop.
    """

    def __init__(
        self,
        case: Case,
        engines: Mapping[str, Engine],
        metrics: GatewayMetrics,
        queue: int,
        concurrency: int,
        fallback: float | None = None,
    ) -> None:
        self._case, self._engines, self._metrics, self._fallback = case, engines, metrics, fallback
        self.names = {side: served_name(one.settings.own.model) for side, one in case.sides.items()}
        self._most = queue + concurrency
        self._pool = ThreadPoolExecutor(max(FEWEST_DECISIONS, concurrency), thread_name_prefix="route")
        self._after = ThreadPoolExecutor(1, thread_name_prefix="observe")
        # A router that keeps a state is asked by one at a time, unless it says otherwise.
        self._asking = nullcontext() if getattr(case.router, "concurrent", False) else threading.Lock()
        self._jobs: set[Job] = set()
        self._deciding: set[Job] = set()
        self._edge = AskedEdge(case.sides["edge"], self._ask_edge, self._ended)
        edge_first.announce(self._edge)
        self.draining = False

    def submit(self, chat: ChatRequest) -> Job:
        """Have the router decide, or ask the side that is named. Raises Refusal."""
        if self.draining:
            raise shutting_down()
        router = policy(self._case.router, chat.model)
        chats = {side: chat.with_defaults(one.settings.sampling) for side, one in self._case.sides.items()}
        job = RoutedJob(chat, chats, self._case.slo)
        if chat.model in SIDES:
            job.routing = {"side": chat.model, "model": self.names[chat.model]}
            self._start(job, chat.model)
        else:
            if len(self._deciding) >= self._most:
                raise _queue_full()
            self._deciding.add(job)
            self._pool.submit(self._decide, job, router)
        self._jobs.add(job)
        return job

    def end(self, job: Job, refusal: Refusal) -> None:
        """Give a job up, wherever it is; does nothing when it is over."""
        if job.over:
            return
        assert isinstance(job, RoutedJob)
        self._finish(job, refusal)
        for leg in (job.leg, job.edge):
            if leg is not None:
                self._engines[leg.side].end(leg, refusal)

    def end_all(self) -> None:
        for job in tuple(self._jobs):
            self.end(job, shutting_down())

    def close(self) -> None:
        for engine in self._engines.values():
            engine.close()
        self._pool.shutdown()
        self._after.shutdown()
        if hasattr(self._case.router, "cleanup"):
            self._case.router.cleanup()

    def emulation(self) -> Mapping[str, Any] | None:
        told = {side: engine.emulation() for side, engine in self._engines.items()}
        return {side: about for side, about in told.items() if about is not None} or None

    def _decide(self, job: RoutedJob, router: Any) -> None:
        """In a thread of its own."""
        outcome: bool | Exception = False
        try:
            if not job.over:
                data = edge_first.ask(job.row) if self._case.edge_first else job.row
                with self._asking:
                    outcome = bool(router(data))
        except Exception as error:
            outcome = error
        # The loop is closed when the server was stopped at once.
        with contextlib.suppress(RuntimeError):
            job.loop.call_soon_threadsafe(self._decided, job, router, outcome)

    def _decided(self, job: RoutedJob, router: Any, outcome: bool | Exception) -> None:
        self._deciding.discard(job)
        if job.over:
            return
        if isinstance(outcome, Exception):
            log.error("the router failed", exc_info=outcome)
            message = "the router failed; the server's log says why"
            self._finish(job, Refusal(500, message, kind="server_error", outcome="failed"))
            return
        record, side = routing_of(job.row, router, outcome), "cloud" if outcome else "edge"
        self._metrics.decided(side, record.get("seconds"))
        self._send(job, side, record)

    def _send(self, job: RoutedJob, side: str, record: Mapping[str, Any]) -> None:
        """Have ``side`` answer; the edge, where the router has asked it, has done so."""
        job.routing = {"side": side, "model": self.names[side], **record}
        answered = job.edge if side == "edge" else None
        if answered is not None and answered.completion is not None:
            for piece in answered.pieces:
                job.tell(piece)
            self._finish(job, answered.completion)
            return
        try:
            self._start(job, side)
        except Refusal as refusal:
            self._failed(job, refusal)
            return
        if side == "cloud" and self._fallback is not None:
            reason = f"the cloud has not begun within {self._fallback:g} s"
            job.timer = asyncio.get_running_loop().call_later(self._fallback, self._fall_back, job, reason)

    def _start(self, job: RoutedJob, side: str) -> None:
        """Raises Refusal where the side has no room."""
        leg = Leg(job.chats[side], side, partial(self._heard, job))
        self._engines[side].take(leg)
        job.leg = leg
        observers.began(side, job.row)

    def _heard(self, job: RoutedJob, leg: Leg, event: Event) -> None:
        """On the event loop, from the engine of a side."""
        if not isinstance(event, str):
            self._ended(job, leg, event)
        if leg is not job.leg or job.over:
            return
        if job.timer is not None:
            job.timer.cancel()
        if isinstance(event, str):
            job.began = True
            job.tell(event)
        elif isinstance(event, Refusal):
            self._failed(job, event)
        else:
            self._finish(job, event)

    def _failed(self, job: RoutedJob, refusal: Refusal) -> None:
        """A side gives no answer."""
        routed = job.routing is not None and "router" in job.routing and job.routing["side"] == "cloud"
        if self._fallback is None or not routed or job.began or refusal.outcome == "rejected":
            self._finish(job, refusal)
        else:
            self._fall_back(job, f"the cloud failed ({refusal.body['error']['code'] or refusal.status})")

    def _fall_back(self, job: RoutedJob, reason: str) -> None:
        if job.over or job.began:
            return
        self._metrics.fallbacks.inc()
        abandoned, job.leg = job.leg, None
        if abandoned is not None:
            late = Refusal(504, reason, code="fallback", kind="timeout", outcome="deadline")
            self._engines[abandoned.side].end(abandoned, late)
        self._send(job, "edge", {**dict(job.routing or {}), "side": "edge", "model": self.names["edge"],
                                 "reason": f"fallback: {reason}"})  # fmt: skip

    def _ask_edge(self, job: RoutedJob, leg: Leg) -> None:
        """From a router's thread, by way of the loop."""
        self._engines["edge"].take(leg)
        job.edge = leg
        observers.began("edge", job.row)

    def _finish(self, job: RoutedJob, event: Event) -> None:
        job.over = True
        self._jobs.discard(job)
        self._deciding.discard(job)
        if job.timer is not None:
            job.timer.cancel()
        self._metrics.outcome(event.outcome if isinstance(event, Refusal) else "completed")
        job.tell(event)

    def _ended(self, job: RoutedJob, leg: Leg, event: Event) -> None:
        if isinstance(event, Completion):
            side = self._case.sides[leg.side].settings
            cost = side.cost(event.prompt_tokens, event.completion_tokens, event.cached_tokens)
            self._metrics.paid(leg.side, cost)
        self._after.submit(self._observe, job, leg, event)

    def _observe(self, job: RoutedJob, leg: Leg, event: Event) -> None:
        """Routers learn what became of an answer; in a thread of its own, since learning takes a while."""
        observers.ended(leg.side, job.row, response_to(job.row, event, self._case.sides[leg.side], leg.side))


def _queue_full() -> Refusal:
    message = "too many requests wait for the router (--queue)"
    headers = {"Retry-After": "1"}
    return Refusal(429, message, code="queue_full", kind="rate_limit_error", outcome="queue_full", headers=headers)
