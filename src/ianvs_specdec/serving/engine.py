"""Request queue in front of a back end: first come, first served, with a bounded length.

All state is on the event loop, so there are no locks; only the back end runs in threads. A slot is free when its
decoding has ended, not when its client disconnects.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from ianvs_specdec.backends.base import LLM
from ianvs_specdec.common.errors import AnswerError, ContextWindowError, PromptError, UserError
from ianvs_specdec.common.types import Completion
from ianvs_specdec.serving.metrics import Metrics
from ianvs_specdec.serving.protocol import RequestError
from ianvs_specdec.serving.requests import ChatRequest

log = logging.getLogger(__name__)

MAX_RETRY_AFTER = 60
"""Seconds of a Retry-After header."""

Event = str | Completion | RequestError
"""A piece of text; at the end the completion or an error."""


class Job:
    """One choice of a request. Its events go to the queue ``inbox``, with ``number``, and to ``listener``.

    ``routing``, of an answer behind a router, is set before the first event: ``side``, ``model``, ``router``,
    ``score``, ``hard``, ``seconds`` and ``reason``, as far as known.
    """

    routing: Mapping[str, Any] | None = None
    listener: Callable[[Event], None] | None = None
    number = 0

    def __init__(self, chat: ChatRequest) -> None:
        self.chat = chat
        self.arrived = time.perf_counter()
        self.waited = 0.0
        """Seconds in the queue."""
        self.tokens = 0
        self.finished = False
        """The decoding thread reads this, and stops when it is True."""
        self.inbox = asyncio.Queue[tuple[int, Event]]()

    def emit(self, event: Event) -> None:
        self.inbox.put_nowait((self.number, event))
        if self.listener is not None:
            self.listener(event)


class EngineClient(Protocol):
    """Interface of ``RequestQueue`` and of the gateway."""

    draining: bool

    def submit(self, chat: ChatRequest) -> Job: ...

    def end(self, job: Job, error: RequestError) -> None: ...

    def end_all(self) -> None: ...

    def close(self) -> None: ...

    def emulation(self) -> Mapping[str, Any] | None: ...


class Choices:
    """The jobs of all choices of a request. If one is rejected, the others are ended. Raises RequestError."""

    def __init__(self, engine: EngineClient, chat: ChatRequest) -> None:
        self._engine = engine
        self.jobs: list[Job] = []
        self._events = asyncio.Queue[tuple[int, Event]]()
        try:
            for number, one in enumerate(chat.choices()):
                job = engine.submit(one)
                job.number, job.inbox = number, self._events
                self.jobs.append(job)
        except RequestError as error:
            self.end(error)
            raise

    def end(self, error: RequestError) -> None:
        for job in self.jobs:
            self._engine.end(job, error)

    @property
    def routing(self) -> Mapping[str, Any] | None:
        """That of the first choice, with the total cost once it is known."""
        routings = [dict(job.routing or {}) for job in self.jobs]
        costs = [routing.pop("cost", None) for routing in routings]
        total = {} if None in costs else {"cost": sum(costs)}
        return {**routings[0], **total} or None

    async def events(self) -> list[tuple[int, Event]]:
        """Wait for new events; each has the number of its choice."""
        events = [await self._events.get()]
        while not self._events.empty():
            events.append(self._events.get_nowait())
        return events


class _Cancelled(Exception):
    """Raised in the back end to stop decoding."""


class _LoopCalls:
    """Calls from decoding threads to the event loop, with one wake-up for all pending calls: a wake-up per token would
    make the decoding thread wait for the interpreter's lock each time."""

    def __init__(self) -> None:
        self._calls: deque[Callable[[], None]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waking = False

    def add(self, call: Callable[[], None], loop: asyncio.AbstractEventLoop) -> None:
        """Have the ``loop`` run the call at the next ``wake``, in order; from any thread."""
        self._loop = loop
        self._calls.append(call)

    def wake(self) -> None:
        """Wake the loop if calls are pending; from any thread."""
        if self._waking or not self._calls or self._loop is None:
            return
        self._waking = True
        # The loop is closed if the server was stopped at once.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._run)

    def _run(self) -> None:
        # First, so that later calls wake the loop again.
        self._waking = False
        try:
            while self._calls:
                self._calls.popleft()()
        finally:
            # A call that failed does not stop the others.
            if self._calls:
                asyncio.get_running_loop().call_soon(self._run)


class RequestQueue:
    """Requests to ``llm``. ``queue``: maximum waiting requests; ``concurrency``: requests in progress, 1 if the
    back end is not concurrent.

    The model must be loaded. All methods are called on the event loop.
    """

    def __init__(self, llm: LLM, queue: int, concurrency: int, metrics: Metrics) -> None:
        self._llm, self._max_waiting, self._slots, self._metrics = llm, queue, concurrency, metrics
        self._pool = ThreadPoolExecutor(self._slots, thread_name_prefix="decode")
        self._waiting: deque[Job] = deque()
        self._running: set[Job] = set()
        self._calls = _LoopCalls()
        self._batches_chunks = llm.on_compute_start(self._calls.wake)
        """Whether the back end says when to send chunks."""
        self._mean_latency = 0.0
        self.draining = False
        metrics.watch(lambda: len(self._waiting), lambda: len(self._running), llm.memory(), llm.occupancy)
        metrics.watch_emulation(llm.emulation)

    def submit(self, chat: ChatRequest) -> Job:
        """Start or queue a request. Raises RequestError if the queue is full or the server is stopping."""
        job = Job(chat)
        self.start(job)
        return job

    def start(self, job: Job) -> None:
        """As ``submit``, for an existing job."""
        if self.draining:
            raise shutting_down()
        if (total := job.chat.total) > (most := self._slots + self._max_waiting):
            message = f"{total} choices; this server has room for {most} (--concurrency and --queue)"
            raise RequestError(400, message, param="n" if job.chat.n > 1 else "prompt")
        if len(self._running) == self._slots and len(self._waiting) == self._max_waiting:
            raise queue_full(len(self._waiting), self._mean_latency / self._slots)
        self._waiting.append(job)
        self._fill()

    def end(self, job: Job, error: RequestError) -> None:
        """Cancel a job; no effect if it has finished."""
        if job.finished:
            return
        job.finished = True
        if job in self._running:
            self._metrics.unfinished(job.tokens)
        else:
            self._waiting.remove(job)
        self._metrics.outcome(error.outcome)
        job.emit(error)

    def emulation(self) -> Mapping[str, Any] | None:
        return self._llm.emulation()

    def end_all(self) -> None:
        for job in (*self._waiting, *self._running):
            self.end(job, shutting_down())

    def close(self) -> None:
        """Wait for the threads, after ``end_all``. A concurrent back end is closed first: its requests may hang."""
        if self._llm.concurrent:
            self._llm.close()
        self._pool.shutdown()
        self._llm.close()

    def _fill(self) -> None:
        while self._waiting and len(self._running) < self._slots:
            job = self._waiting.popleft()
            self._running.add(job)
            self._pool.submit(self._decode, job, asyncio.get_running_loop())

    def _decode(self, job: Job, loop: asyncio.AbstractEventLoop) -> None:
        """Runs in a thread."""

        def on_chunk(piece: str, tokens: int) -> None:
            if job.finished:
                raise _Cancelled
            self._calls.add(partial(self._chunk, job, piece, tokens), loop)
            if not self._batches_chunks:
                self._calls.wake()

        job.waited = time.perf_counter() - job.arrived
        result: Completion | Exception
        try:
            hints = replace(job.chat.hints, cancelled=lambda: job.finished)
            result = _Cancelled() if job.finished else job.chat.ask(self._llm, on_chunk, hints)
        except Exception as error:
            result = error
        self._calls.add(partial(self._decoded, job, result), loop)
        self._calls.wake()

    def _chunk(self, job: Job, piece: str, tokens: int) -> None:
        if not job.finished:
            job.tokens += tokens
            job.emit(piece)

    def _decoded(self, job: Job, result: Completion | Exception) -> None:
        self._running.remove(job)
        self._fill()
        if job.finished:
            return
        job.finished = True
        outcome = result if isinstance(result, Completion) else self._error(job.chat, result)
        # Before the metrics: if these fail, the client still gets its answer.
        job.emit(outcome)
        if isinstance(outcome, Completion):
            latency = outcome.trace.latency or 0.0
            self._mean_latency = latency if not self._mean_latency else 0.8 * self._mean_latency + 0.2 * latency
            self._metrics.completed(outcome, job.waited)
        else:
            self._metrics.unfinished(job.tokens)
            self._metrics.outcome(outcome.outcome)

    def _error(self, chat: ChatRequest, error: Exception) -> RequestError:
        param = "prompt" if chat.prompts else "messages"
        if isinstance(error, RequestError):
            return error
        if isinstance(error, ContextWindowError):
            return RequestError(400, str(error), param=param, code="context_length_exceeded")
        if isinstance(error, PromptError):
            return RequestError(400, str(error), param=param, outcome="failed")
        if isinstance(error, UserError) and self._llm.local and not isinstance(error, AnswerError):
            return RequestError(400, str(error), outcome="failed")
        if isinstance(error, UserError):
            return RequestError(502, str(error), code="upstream", kind="server_error", outcome="failed")
        log.error("a request failed", exc_info=error)
        message = "this request failed; the server's log says why"
        return RequestError(500, message, kind="server_error", outcome="failed")


def queue_full(waiting: int, seconds: float) -> RequestError:
    """``seconds``: expected time until a slot is free."""
    return RequestError(
        429,
        f"{waiting} requests are waiting, the maximum of this server (--queue)",
        code="queue_full",
        kind="rate_limit_error",
        outcome="queue_full",
        headers={"Retry-After": str(max(1, min(MAX_RETRY_AFTER, math.ceil(seconds))))},
    )


def shutting_down() -> RequestError:
    message = "this server is shutting down"
    headers = {"Retry-After": "5"}
    return RequestError(503, message, code="shutting_down", kind="server_error", outcome="shutdown", headers=headers)


def deadline_passed(seconds: float) -> RequestError:
    message = f"the answer was not complete within {seconds:g} s, the deadline of this server (--deadline)"
    return RequestError(504, message, code="deadline_exceeded", kind="timeout", outcome="deadline")


DISCONNECTED = RequestError(499, "the client disconnected", outcome="disconnected")
