"""The decode loop. Autoregressive decoding is the same loop with empty drafts; a single request is a batch of one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ianvs_specdec.common.errors import ContextWindowError
from ianvs_specdec.common.types import EngineCounters, Occupancy, Sampling
from ianvs_specdec.engine.batch import Batch, StepTimer, draft, guarded, timed
from ianvs_specdec.engine.contracts import Drafter, Target
from ianvs_specdec.engine.length import FinishedStep, Length, Load, RequestStep
from ianvs_specdec.engine.request import Decoded, Request

MAX_BATCH_SIZE = 64
"""Requests per step. With more, each request slows down by about as much as the others gain."""

MAX_EMIT_DELAY = 0.02
"""Seconds that emitted tokens may wait for drafting before they are streamed. If the previous step drafted for longer,
they are streamed first."""


def decode(
    target: Target, drafter: Drafter, length: Length, prompt_ids: Sequence[int], sampling: Sampling, **options: Any
) -> Decoded:
    """Continue ``prompt_ids``. Greedy and coupled output does not depend on the drafter; with ``rejection`` its
    distribution does not.

    ``options`` are those of ``Request``. Raises ``ContextWindowError`` if the prompt fills the context window.
    """
    request = Request(target, drafter, prompt_ids, sampling, **options)
    engine = Engine(target, length)
    engine.add(request)
    engine.run()
    return request.result()


class Engine:
    """Continuous batching: each step of the target serves all running requests.

    Requests are admitted in order of arrival when memory suffices for their longest possible output, and leave at the
    end of their last step. A step computes at most ``prompt_rows`` prompt tokens, of requests in turn, which bounds
    the delay by long prompts. An error ends its own request only.

    ``length`` sets the draft budgets. ``memory`` limits the bytes of all sequences and drafter states; None = no limit.
    Not thread-safe.
    """

    def __init__(
        self,
        target: Target,
        length: Length,
        memory: int | None = None,
        max_batch_size: int = MAX_BATCH_SIZE,
        timer: StepTimer | None = None,
    ) -> None:
        self._target, self._length, self._memory, self._max_batch_size = target, length, memory, max_batch_size
        self.timer = timer or StepTimer()
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._done = EngineCounters()

    def add(self, request: Request) -> None:
        """Queue ``request``. In an idle engine, warm the target up for it first. One that would never fit into memory
        ends at the next step."""
        guarded(request, self._check_memory, request)
        if not self.busy and request.error is None:
            # In a running batch the shapes are those of the other requests.
            guarded(request, request.warm_up)
        self._waiting.append(request)

    @property
    def busy(self) -> bool:
        """Whether any request is queued or running."""
        return bool(self._waiting or self._running)

    @property
    def idle(self) -> bool:
        """Whether a step would do nothing because all running requests wait for remote drafts."""
        if any(request.drafter.ready or request.unread or request.end_if_cancelled() for request in self._running):
            return False
        if any(request.end_if_cancelled() for request in self._waiting):
            return False
        if not self._waiting or len(self._running) == self._max_batch_size:
            return True
        room = self._room()
        return room is not None and self._waiting[0].memory > room

    @property
    def occupancy(self) -> Occupancy:
        """Running and waiting requests. Thread-safe."""
        running = list(self._running)
        held = sum(request.memory for request in running)
        return Occupancy(len(running), len(self._waiting), held, self._done)

    def step(self, on_compute_start: Callable[[], None] = lambda: None) -> list[Request]:
        """Run one step of the target. Returns the requests that have ended.

        ``on_compute_start`` is called when the target starts to compute, the only time when other threads can work
        without contention for the interpreter lock.
        """
        if torch.is_inference_mode_enabled():
            return self._step(on_compute_start)
        with torch.inference_mode():
            return self._step(on_compute_start)

    def _step(self, on_compute_start: Callable[[], None]) -> list[Request]:
        if self.timer.draft > MAX_EMIT_DELAY:
            on_compute_start()
        over = self._leave() + self._join()
        self.timer.begin()
        batch = Batch([], [])
        self._schedule(batch)
        if batch.decoding:
            self._choose(batch)
            self._draft(batch)
        on_compute_start()
        if batch.reading or batch.decoding:
            self._compute(batch)
        if batch.outputs:
            self._accept(batch)
            self._emit(batch)
            self._commit(batch)
            self._observe(batch)
            self._learn(batch)
        over += self._leave()
        self.timer.end(not self.idle)
        return over

    @timed
    def _schedule(self, batch: Batch) -> None:
        """Select prompts in turn, and all requests that have read theirs and do not wait for a remote draft."""
        batch.reading = self._read()
        batch.decoding = [request for request in self._running if request.decoding and request.drafter.ready]
        batch.prompt_rows = sum([len(request.step_input.tokens) for request in batch.reading])
        for request in batch.decoding:
            guarded(request, request.update_unread)

    @timed
    def _choose(self, batch: Batch) -> None:
        unread = len([request for request in self._running if request.unread]) if batch.reading else 0
        reading = len([request for request in self._running if not request.decoding])
        running = [request.stats for request in batch.decoding]
        batch.budgets = self._length.budgets(Load(running, len(self._waiting), batch.prompt_rows, unread, reading))

    @timed
    def _draft(self, batch: Batch) -> None:
        """Create a tree for each request: its drafter's proposal, or the root alone."""
        drafting = draft(batch.decoding, batch.budgets, self._length.confidence)
        batch.drafted = [request for request in drafting if not (request.error or request.drafter.remote)]
        batch.decoding = [request for request in batch.decoding if not request.end_if_cancelled()]

    @timed
    def _compute(self, batch: Batch) -> None:
        requests = batch.reading + batch.decoding
        batch.rows = sum([len(request.step_input.tokens) for request in batch.decoding])
        batch.context = sum([request.stats.context_tokens for request in batch.decoding])
        try:
            batch.outputs = self._target.step([(request.sequence, request.step_input) for request in requests])
        except Exception as error:
            for request in requests:
                request.error = error
            self.timer.fail()

    @timed
    def _accept(self, batch: Batch) -> None:
        """Verify the trees; a request whose prompt is finished emits its first token."""
        for request, output in zip(batch.reading + batch.decoding, batch.outputs, strict=True):
            guarded(request, request.accept, output)

    def _emit(self, batch: Batch) -> None:
        steps = [guarded(request, request.emit) for request in batch.decoding if not request.error]
        batch.emitted = [step for step in steps if step is not None]
        batch.decoding = [request for request in batch.decoding if not request.ended]

    @timed
    def _commit(self, batch: Batch) -> None:
        for request in batch.decoding:
            guarded(request, request.commit)

    @timed
    def _observe(self, batch: Batch) -> None:
        for request in batch.decoding:
            guarded(request, request.observe)

    @timed
    def _learn(self, batch: Batch) -> None:
        finished = FinishedStep(batch.emitted, batch.rows, batch.prompt_rows, batch.context, *self.timer.spent())
        self._done = _added(self._done, batch.emitted)
        for request in batch.drafted:
            request.add_draft_seconds(finished.draft_seconds / len(batch.drafted))
        self._length.learn(finished)

    def run(self) -> None:
        """Run all added requests to their ends, then close."""
        try:
            while self.busy:
                self.step()
        finally:
            self.close()

    def close(self) -> None:
        for request in self._running:
            guarded(request, request.close)
        self._running.clear()
        self._waiting.clear()

    def _leave(self) -> list[Request]:
        over = [request for request in self._running if request.end_if_cancelled()]
        for request in over:
            self._running.remove(request)
            guarded(request, request.close)
        return over

    def _join(self) -> list[Request]:
        """Admit waiting requests while there is memory. Returns those that ended before they started."""
        if not self._waiting:
            return []
        over = [request for request in self._waiting if request.end_if_cancelled()]
        for request in over:
            self._waiting.remove(request)
        room = self._room()
        while self._waiting and len(self._running) < self._max_batch_size:
            request = self._waiting[0]
            if room is not None and request.memory > room:
                break
            self._waiting.popleft()
            guarded(request, request.open)
            # A request that was cancelled meanwhile has a sequence to close.
            (self._running if request.opened else over).append(request)
            if request.opened and room is not None:
                room -= request.memory
        return over

    def _room(self) -> int | None:
        """Bytes not reserved by running requests; None = no limit."""
        return None if self._memory is None else self._memory - sum([other.memory for other in self._running])

    def _check_memory(self, request: Request) -> None:
        if self._memory is not None and (needed := request.memory) > self._memory:
            raise ContextWindowError(
                f"the prompt and max_tokens, together {request.positions} tokens, need {needed / 1e6:.3g} MB of keys, "
                f"values and drafter state; {self._memory / 1e6:.3g} MB are available: shorten the prompt, "
                "or lower max_tokens"
            )

    def _read(self) -> list[Request]:
        """Select the requests whose prompts are read in this step: at least one, and as many as fit into
        ``prompt_rows``."""
        reading = [request for request in self._running if request.unread]
        if not reading:
            return []
        chosen = reading[:1]
        if (rows := self._target.prompt_rows) is not None:
            room = rows - sum(len(request.unread) for request in chosen)
            for request in reading[1:]:
                if len(request.unread) <= room:
                    chosen.append(request)
                    room -= len(request.unread)
        for request in chosen:
            # Round robin: the next chunk is another request's.
            self._running.remove(request)
            self._running.append(request)
            request.read()
        return chosen


def _added(done: EngineCounters, requests: Sequence[RequestStep]) -> EngineCounters:
    drafted, accepted, emitted, verified = done.drafted, done.accepted, done.emitted, done.verified
    for request in requests:
        step = request.step
        drafted += step.drafted
        accepted += step.accepted
        emitted += step.emitted
        verified += step.verified
    return EngineCounters(done.steps + 1, done.verifications + len(requests), drafted, accepted, emitted, verified)
