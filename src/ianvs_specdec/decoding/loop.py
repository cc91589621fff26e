"""Speculative decoding: the loop. Autoregressive decoding is the same loop with drafts of no tokens, and one request is
an engine with one sequence."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from operator import methodcaller
from typing import Any, ParamSpec, TypeVar

import torch

from ianvs_specdec.decoding.contracts import Drafter, Target
from ianvs_specdec.decoding.load import Finished, Length, Load, Share
from ianvs_specdec.decoding.meter import Meter
from ianvs_specdec.decoding.request import Decoded, Request
from ianvs_specdec.decoding.tree import TokenTree
from ianvs_specdec.errors import ContextWindowError, UserError
from ianvs_specdec.types import Occupancy, Sampling, Work

P = ParamSpec("P")
R = TypeVar("R")

MOST_AT_ONCE = 64
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
    try:
        while engine.busy:
            engine.step()
    finally:
        engine.close()
    return request.result()


class Engine:
    """Drives requests over one target: each of its steps serves all that are under way.

    A request joins when there is memory for all that it may come to hold, first come, first served, and leaves at the
    first step after its end. Of the prompts, one piece is computed in each step, in turn, so that a long one delays the
    others by no more. A request that fails fails alone.

    ``length`` says before every step how far to speculate for whom. ``memory`` limits the bytes of all sequences
    and of what their drafters hold; None = no limit. ``meter`` takes the times, or makes them. Not thread-safe.
    """

    def __init__(
        self,
        target: Target,
        length: Length,
        memory: int | None = None,
        at_once: int = MOST_AT_ONCE,
        meter: Meter | None = None,
    ) -> None:
        self._target, self._length, self._memory, self._at_once = target, length, memory, at_once
        self._meter = meter or Meter()
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._done = Work()

    def add(self, request: Request) -> None:
        """``request`` is served as soon as there is room."""
        if not self.busy:
            # Beside others it is computed in shapes that they have, too.
            _guarded(request, request.warm)
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
        return not (self._waiting and len(self._running) < self._at_once and self._fits(self._waiting[0], self._room()))

    @property
    def occupancy(self) -> Occupancy:
        """What is under way and what waits; from any thread."""
        running = list(self._running)
        held = sum(request.memory for request in running)
        return Occupancy(len(running), len(self._waiting), held, self._done)

    def step(self, meanwhile: Callable[[], None] = lambda: None) -> list[Request]:
        """One step of the target for everybody. Returns the requests that are over.

        ``meanwhile`` starts what other threads may do while the target computes: at any other time, they and this one
        would wait for each other at the interpreter's lock.
        """
        if torch.is_inference_mode_enabled():
            return self._step(meanwhile)
        with torch.inference_mode():
            return self._step(meanwhile)

    def _step(self, meanwhile: Callable[[], None]) -> list[Request]:
        if self._meter.draft > LATE:
            meanwhile()
        over = self._leave() + self._join()
        self._meter.begin()
        reading = self._read()
        prompt_rows = sum([len(request.piece.tokens) for request in reading])
        unread = len([request for request in self._running if request.unread]) if reading else 0
        decoding = self._draft(prompt_rows, unread)
        meanwhile()
        self._meter.emitted()
        if reading or decoding:
            self._compute(reading, decoding, prompt_rows)
        over += self._leave()
        self._meter.end(not self.idle)
        return over

    def close(self) -> None:
        """Let go of all that is under way or waits."""
        for request in self._running:
            _guarded(request, request.close)
        self._running.clear()
        self._waiting.clear()

    def _leave(self) -> list[Request]:
        over = [request for request in self._running if request.over]
        for request in over:
            self._running.remove(request)
            _guarded(request, request.close)
        return over

    def _join(self) -> list[Request]:
        """Let in what there is room for. Returns requests that were over before they began."""
        over = [request for request in self._waiting if request.over]
        for request in over:
            self._waiting.remove(request)
        room = self._room() if self._waiting else 0
        while self._waiting and len(self._running) < self._at_once:
            request = self._waiting[0]
            if not self._fits(request, room):
                break
            self._waiting.popleft()
            if request.error is None:
                _guarded(request, request.open)
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

    def _draft(self, prompt_rows: int, unread: int) -> list[Request]:
        """Who has a tree verified in the next step: all that have read their prompts and wait for no draft."""
        decoding = [request for request in self._running if request.began and request.drafter.ready]
        asked: list[Request] = []
        if decoding:
            _each(decoding, _LOOK)
            reading = len([request for request in self._running if not request.began])
            load = Load([request.stats for request in decoding], len(self._waiting), prompt_rows, unread, reading)
            self._meter.looked()
            budgets = self._length.budgets(load)
            self._meter.chosen()
            asked = self._propose(decoding, budgets)
        self._meter.drafted(asked)
        return [request for request in decoding if not request.over]

    def _propose(self, decoding: list[Request], budgets: Sequence[int]) -> list[Request]:
        """Have drafts made. Returns who was asked for one."""
        asking: dict[tuple[type[Drafter], int], list[tuple[Request, int]]] = {}
        confidence = self._length.confidence
        for request, budget in zip(decoding, budgets, strict=True):
            request.ask(budget, confidence)
            if budget > 0:
                drafter = request.drafter
                asking.setdefault((type(drafter), id(drafter.together)), []).append((request, budget))
            else:
                request.plain()
        for requests in asking.values():
            _propose(requests)
        asked = [request for requests in asking.values() for request, _ in requests]
        return [request for request in asked if not (request.error or request.drafter.far)]

    def _compute(self, reading: list[Request], decoding: list[Request], prompt_rows: int) -> None:
        meter, requests = self._meter, reading + decoding
        try:
            outputs = self._target.step([(request.sequence, request.piece) for request in requests])
        except Exception as error:
            for request in requests:
                request.error = error
            meter.failed()
            return
        context = sum([request.stats.context_tokens for request in decoding])
        prompts = sum([request.stats.context_tokens for request in reading])
        rows = sum([len(request.piece.tokens) for request in decoding])
        meter.computed(rows, context, len(decoding), prompt_rows, prompts)
        shares = self._settle(requests, decoding, outputs)
        self._done = _added(self._done, shares)
        seconds = meter.draft, meter.verify, meter.other, meter.choosing
        self._length.learn(Finished(shares, rows, prompt_rows, context, *seconds))
        meter.learned()

    def _settle(self, requests: list[Request], decoding: list[Request], outputs: Sequence[Any]) -> list[Share]:
        """Put out what the step brought the ``requests``, of which some are ``decoding``: what came of it for those."""
        meter = self._meter
        for request, output in zip(requests, outputs, strict=True):
            try:
                request.accept(output)
            except Exception as error:
                request.fail(error)
        meter.verified()
        decided = [request for request in decoding if not request.error]
        shares = []
        for request in decided:
            try:
                shares.append(request.emit())
            except Exception as error:
                request.fail(error)
        meter.emitted()
        going_on = [request for request in decided if not request.ended]
        _each(going_on, _COMMIT)
        meter.committed()
        _each(going_on, _OBSERVE)
        meter.observed()
        return shares


def _added(done: Work, shares: Sequence[Share]) -> Work:
    drafted, accepted, emitted, verified = done.drafted, done.accepted, done.emitted, done.verified
    for share in shares:
        step = share.step
        drafted += step.drafted
        accepted += step.accepted
        emitted += step.emitted
        verified += step.verified
    return Work(done.steps + 1, done.verifications + len(shares), drafted, accepted, emitted, verified)


def _propose(requests: list[tuple[Request, int]]) -> None:
    """Ask for drafts of requests whose drafters have the same in common."""
    if len(requests) > 1 and requests[0][0].drafter.together:
        for (request, _), tree in zip(requests, _proposed(requests), strict=True):
            try:
                if isinstance(tree, Exception):
                    raise tree
                request.verify(tree)
            except Exception as error:
                request.fail(error)
        return
    for request, budget in requests:
        _guarded(request, request.draft, budget)


def _proposed(requests: list[tuple[Request, int]]) -> Sequence[TokenTree | Exception]:
    """A tree for each request, or what went wrong with it."""
    drafter = type(requests[0][0].drafter)
    try:
        trees = drafter.propose_all([(request.drafter, request.context, budget) for request, budget in requests])
        if len(trees) != len(requests):
            raise UserError(f"{drafter.__name__}.propose_all returned {len(trees)} trees for {len(requests)} requests")
        return trees
    except Exception as error:
        return [error] * len(requests)


_LOOK, _COMMIT, _OBSERVE = methodcaller("look"), methodcaller("commit"), methodcaller("observe")


def _each(requests: Sequence[Request], call: Callable[[Request], None]) -> None:
    """``call`` for each of the requests; where it raises, only that one ends."""
    for request in requests:
        try:
            call(request)
        except Exception as error:
            request.fail(error)


def _guarded(request: Request, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R | None:
    """What ``function`` returns; where it raises, only ``request`` ends."""
    try:
        return function(*args, **kwargs)
    except Exception as error:
        request.fail(error)
        return None
