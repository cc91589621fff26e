"""Speculative decoding: the loop. Autoregressive decoding is the same loop with drafts of no tokens, and one request is
an engine with one sequence."""

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
"""Requests that share a step: beyond, each gets slower by about what the others gain."""

LATE = 0.02
"""Seconds of drafting for which what was put out may wait to be sent on: nobody sees that. Where drafting took longer
in the step before, it does not wait for the drafts."""


def decode(
    target: Target, drafter: Drafter, length: Length, prompt_ids: Sequence[int], sampling: Sampling, **options: Any
) -> Decoded:
    """Continue ``prompt_ids`` losslessly: the output is the target's own, whatever the drafter proposes.

    ``options`` are those of ``Request``. Raises ``ContextWindowError`` for a prompt that fills the target's context
    window.
    """
    request = Request(target, drafter, prompt_ids, sampling, **options)
    engine = Engine(target, length)
    engine.add(request)
    engine.run()
    return request.result()


class Engine:
    """Drives requests over one target: each of its steps serves all that are under way.

    A request joins when there is memory for all that it may come to hold, first come, first served, and leaves at the
    first step after its end. Of the prompts, a step computes at most ``prompt_rows`` tokens, in turn, so that a long
    one delays the others by no more. A request that fails fails alone.

    ``length`` says before every step how far to speculate for whom. ``memory`` limits the bytes of all sequences
    and of what their drafters hold; None = no limit. ``timer`` takes the times, or makes them. Not thread-safe.
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
        """``request`` is served as soon as there is room."""
        if not self.busy:
            # Beside others it is computed in shapes that they have, too.
            guarded(request, request.warm_up)
        self._waiting.append(request)

    @property
    def busy(self) -> bool:
        """Whether there is anything to do."""
        return bool(self._waiting or self._running)

    @property
    def idle(self) -> bool:
        """Whether a step would do nothing: all that are under way wait for drafts from elsewhere."""
        if any(request.drafter.ready or request.unread or request.over for request in self._running):
            return False
        if any(request.over for request in self._waiting):
            return False
        return not (
            self._waiting and len(self._running) < self._max_batch_size and self._fits(self._waiting[0], self._room())
        )

    @property
    def occupancy(self) -> Occupancy:
        """Running and waiting requests; callable from any thread."""
        running = list(self._running)
        held = sum(request.memory for request in running)
        return Occupancy(len(running), len(self._waiting), held, self._done)

    def step(self, on_compute_start: Callable[[], None] = lambda: None) -> list[Request]:
        """One step of the target for everybody. Returns the requests that are over.

        ``on_compute_start`` starts what other threads may do while the target computes: at any other time, they and
        this one would wait for each other at the interpreter's lock.
        """
        if torch.is_inference_mode_enabled():
            return self._step(on_compute_start)
        with torch.inference_mode():
            return self._step(on_compute_start)

    def _step(self, on_compute_start: Callable[[], None]) -> list[Request]:
        if self.timer.draft > LATE:
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
        """Who takes part: prompts are read in turn, and all that have read theirs and wait for no draft decode."""
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
        """A tree for each: what its drafter proposes, those with something in common at once, or its root alone."""
        asked = draft(batch.decoding, batch.budgets, self._length.confidence)
        batch.drafted = [request for request in asked if not (request.error or request.drafter.remote)]
        batch.decoding = [request for request in batch.decoding if not request.over]

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
        """Verify the trees; a request with a finished prompt emits its first token."""
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
        """Serve all that were added to their ends, and close."""
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
        over = [request for request in self._running if request.over]
        for request in over:
            self._running.remove(request)
            guarded(request, request.close)
        return over

    def _join(self) -> list[Request]:
        """Let in what there is room for. Returns requests that were over before they began."""
        if not self._waiting:
            return []
        over = [request for request in self._waiting if request.over]
        for request in over:
            self._waiting.remove(request)
        room = self._room()
        while self._waiting and len(self._running) < self._max_batch_size:
            request = self._waiting[0]
            if not self._fits(request, room):
                break
            self._waiting.popleft()
            if request.error is None:
                guarded(request, request.open)
            # One that was cancelled meanwhile has a sequence to be closed.
            (self._running if request.opened else over).append(request)
            if request.opened and room is not None:
                room -= request.memory
        return over

    def _room(self) -> int | None:
        """Bytes that those under way leave to others; None = no limit."""
        return None if self._memory is None else self._memory - sum([other.memory for other in self._running])

    def _fits(self, request: Request, room: int | None) -> bool:
        if self._memory is None or room is None:
            return True
        needed = request.memory
        if needed > self._memory:
            request.error = ContextWindowError(
                f"keys and values of {request.positions} tokens, prompt and max_tokens together, take "
                f"{needed / 1e6:.3g} MB with what drafting for them holds, and {self._memory / 1e6:.3g} MB are there "
                "for all requests: shorten the prompt, or lower max_tokens"
            )
            return True
        return needed <= room

    def _read(self) -> list[Request]:
        """Who has a piece of a prompt computed in the next step: as many as make one piece of the target's size, and at
        least one."""
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
            # To the end of the line: the next piece is another's.
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
