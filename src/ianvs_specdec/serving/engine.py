"""Who is served when: a bounded queue, first come, first served, before a back end that works in threads of its own.

Everything but the decoding happens on the event loop, so that nothing needs a lock. A place is free again when its
decoding has really ended, not when its client has left.
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
from ianvs_specdec.serving.refusal import Refusal
from ianvs_specdec.serving.requests import ChatRequest

log = logging.getLogger(__name__)

LONGEST_RETRY = 60

Event = str | Completion | Refusal
Inbox = asyncio.Queue[tuple[int, Event]]


class Job:
    """One request on its way through the engine. Its events, which come into the ``inbox`` with the job's ``number``,
    are pieces of text, and at the end a Completion or a Refusal. ``routing``, of an answer behind a router, is there
    before its first event: ``side``, ``model``, ``router``, ``score``, ``hard``, ``seconds`` and ``reason``, each where
    it is known.
    """

    routing: Mapping[str, Any] | None = None
    listener: Callable[[Event], None] | None = None
    """Called with each event as well."""
    number = 0

    def __init__(self, chat: ChatRequest) -> None:
        self.chat = chat
        self.arrived = time.perf_counter()
        self.waited = 0.0
        self.tokens = 0
        self.over = False
        """Read by the decoding thread: the rest is not wanted."""
        self.inbox: Inbox = asyncio.Queue()

    def tell(self, event: Event) -> None:
        self.inbox.put_nowait((self.number, event))
        if self.listener is not None:
            self.listener(event)


class Serving(Protocol):
    """What answers requests: see ``Engine``."""

    draining: bool

    def submit(self, chat: ChatRequest) -> Job: ...

    def end(self, job: Job, refusal: Refusal) -> None: ...

    def end_all(self) -> None: ...

    def close(self) -> None: ...

    def emulation(self) -> Mapping[str, Any] | None: ...


class _Over(Exception):
    """Raised inside a back end to stop decoding a cancelled request."""


class _Mail:
    """Calls from decoding threads to the event loop. One wake-up serves for all that come before the loop looks:
    with one for each piece, the thread that decodes would have to wait for the interpreter's lock at each."""

    def __init__(self) -> None:
        self._letters: deque[Callable[[], None]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._announced = False

    def put(self, letter: Callable[[], None], loop: asyncio.AbstractEventLoop) -> None:
        """Have the ``loop`` call the ``letter``, behind those before it, once they are announced; from any thread."""
        self._loop = loop
        self._letters.append(letter)

    def announce(self) -> None:
        """Wake the loop, if there are letters; from any thread."""
        if self._announced or not self._letters or self._loop is None:
            return
        self._announced = True
        # The loop is closed when the server was stopped at once.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._open)

    def _open(self) -> None:
        # First, so that what comes from now on is announced again.
        self._announced = False
        try:
            while self._letters:
                self._letters.popleft()()
        finally:
            # One that failed takes none of the others with it.
            if self._letters:
                asyncio.get_running_loop().call_soon(self._open)


class Engine:
    """``queue``: requests that may wait; ``concurrency``: those that may be worked on at the same time, 1 where the
    back end takes no more. The model must be loaded; all methods are called on the event loop.
    """

    def __init__(self, llm: LLM, queue: int, concurrency: int, metrics: Metrics) -> None:
        self._llm, self._bound, self._slots, self._metrics = llm, queue, concurrency, metrics
        self._pool = ThreadPoolExecutor(self._slots, thread_name_prefix="decode")
        self._waiting: deque[Job] = deque()
        self._working: set[Job] = set()
        self._mail = _Mail()
        self._gathers = llm.on_compute_start(self._mail.announce)
        """Whether the back end says when chunks had better be sent on."""
        self._seconds = 0.0
        self.draining = False
        metrics.watch(lambda: len(self._waiting), lambda: len(self._working), llm.memory(), llm.occupancy)
        metrics.watch_emulation(llm.emulation)

    def submit(self, chat: ChatRequest) -> Job:
        """Work on a request now or when its turn comes. Raises Refusal if the queue is full or the server is about to
        stop.
        """
        job = Job(chat)
        self.take(job)
        return job

    def take(self, job: Job) -> None:
        """As ``submit``, of a request that has a job already."""
        if self.draining:
            raise shutting_down()
        if (total := job.chat.total) > (most := self._slots + self._bound):
            message = f"{total} choices; this server has room for {most} (--concurrency and --queue)"
            raise Refusal(400, message, param="n" if job.chat.n > 1 else "prompt")
        if len(self._working) == self._slots and len(self._waiting) == self._bound:
            raise queue_full(len(self._waiting), self._seconds / self._slots)
        self._waiting.append(job)
        self._fill()

    def end(self, job: Job, refusal: Refusal) -> None:
        """Give a job up, wherever it is; does nothing when it is over."""
        if job.over:
            return
        job.over = True
        if job in self._working:
            self._metrics.unfinished(job.tokens)
        else:
            self._waiting.remove(job)
        self._metrics.outcome(refusal.outcome)
        job.tell(refusal)

    def emulation(self) -> Mapping[str, Any] | None:
        return self._llm.emulation()

    def end_all(self) -> None:
        for job in (*self._waiting, *self._working):
            self.end(job, shutting_down())

    def close(self) -> None:
        """Wait for the threads. What they work on must have been ended; a back end of many threads is closed first,
        since its requests may hang.
        """
        if self._llm.concurrent:
            self._llm.close()
        self._pool.shutdown()
        self._llm.close()

    def _fill(self) -> None:
        while self._waiting and len(self._working) < self._slots:
            job = self._waiting.popleft()
            self._working.add(job)
            self._pool.submit(self._decode, job, asyncio.get_running_loop())

    def _decode(self, job: Job, loop: asyncio.AbstractEventLoop) -> None:
        """In a thread of its own."""

        def on_chunk(piece: str, tokens: int) -> None:
            if job.over:
                raise _Over
            self._mail.put(partial(self._chunk, job, piece, tokens), loop)
            if not self._gathers:
                self._mail.announce()

        job.waited = time.perf_counter() - job.arrived
        result: Completion | Exception
        try:
            chat = job.chat
            hints = replace(chat.hints, cancelled=lambda: job.over)
            result = _Over() if job.over else chat.ask(self._llm, on_chunk, hints)
        except Exception as error:
            result = error
        self._mail.put(partial(self._decoded, job, result), loop)
        self._mail.announce()

    def _chunk(self, job: Job, piece: str, tokens: int) -> None:
        if not job.over:
            job.tokens += tokens
            job.tell(piece)

    def _decoded(self, job: Job, result: Completion | Exception) -> None:
        self._working.remove(job)
        self._fill()
        if job.over:
            return
        job.over = True
        outcome = result if isinstance(result, Completion) else self._failure(job.chat, result)
        # First: whatever becomes of the counts, somebody waits for this.
        job.tell(outcome)
        if isinstance(outcome, Completion):
            latency = outcome.trace.latency or 0.0
            self._seconds = latency if not self._seconds else 0.8 * self._seconds + 0.2 * latency
            self._metrics.completed(outcome, job.waited)
        else:
            self._metrics.unfinished(job.tokens)
            self._metrics.outcome(outcome.outcome)

    def _failure(self, chat: ChatRequest, error: Exception) -> Refusal:
        param = "prompt" if chat.prompts else "messages"
        if isinstance(error, Refusal):
            return error
        if isinstance(error, ContextWindowError):
            return Refusal(400, str(error), param=param, code="context_length_exceeded")
        if isinstance(error, PromptError):
            return Refusal(400, str(error), param=param, outcome="failed")
        if isinstance(error, UserError) and self._llm.local and not isinstance(error, AnswerError):
            return Refusal(400, str(error), outcome="failed")
        if isinstance(error, UserError):
            return Refusal(502, str(error), code="upstream", kind="server_error", outcome="failed")
        log.error("a request failed", exc_info=error)
        message = "this request failed; the server's log says why"
        return Refusal(500, message, kind="server_error", outcome="failed")


def queue_full(waiting: int, seconds: float) -> Refusal:
    """``seconds`` until a place is free."""
    return Refusal(
        429,
        f"{waiting} requests are waiting, which is the most this server lets wait (--queue)",
        code="queue_full",
        kind="rate_limit_error",
        outcome="queue_full",
        headers={"Retry-After": str(max(1, min(LONGEST_RETRY, math.ceil(seconds))))},
    )


def shutting_down() -> Refusal:
    message = "this server is about to stop"
    headers = {"Retry-After": "5"}
    return Refusal(503, message, code="shutting_down", kind="server_error", outcome="shutdown", headers=headers)


def deadline_passed(seconds: float) -> Refusal:
    message = f"no whole answer within {seconds:g} s, which is this server's deadline (--deadline)"
    return Refusal(504, message, code="deadline_exceeded", kind="timeout", outcome="deadline")


DISCONNECTED = Refusal(499, "the client left", outcome="disconnected")
