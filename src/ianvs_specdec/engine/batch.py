"""The requests of one step: what is computed for them, their drafts, and the step's time."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.engine.contracts import Drafter, Output
from ianvs_specdec.engine.length import RequestStep
from ianvs_specdec.engine.request import Request
from ianvs_specdec.engine.tree import TokenTree

P = ParamSpec("P")
R = TypeVar("R")


@dataclass
class Batch:
    """The requests of a step: those ``reading`` have a chunk of their prompt computed, those ``decoding`` have a tree
    verified.

    ``budgets`` are those of the decoding requests, ``drafted`` the ones among them that drafted locally. ``rows``,
    ``prompt_rows`` and ``context`` are as in ``FinishedStep``. ``outputs`` is empty if the target failed.
    """

    reading: list[Request]
    decoding: list[Request]
    prompt_rows: int = 0
    budgets: Sequence[int] = field(default=(), init=False)
    drafted: Sequence[Request] = field(default=(), init=False)
    rows: int = field(default=0, init=False)
    context: int = field(default=0, init=False)
    outputs: Sequence[Output] = field(default=(), init=False)
    emitted: Sequence[RequestStep] = field(default=(), init=False)


def guarded(request: Request, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R | None:
    """Call ``function``; an exception ends only ``request``."""
    try:
        return function(*args, **kwargs)
    except Exception as error:
        request.fail(error)
        return None


def draft(requests: Sequence[Request], budgets: Sequence[int], confidence: float) -> list[Request]:
    """Create a tree for each request: a draft if its budget is above 0, else the root alone. Returns the requests that
    drafted."""
    asking: dict[tuple[type[Drafter], int], list[tuple[Request, int]]] = {}
    for request, budget in zip(requests, budgets, strict=True):
        request.set_budget(budget, confidence)
        if budget > 0:
            drafter = request.drafter
            asking.setdefault((type(drafter), id(drafter.batch_key)), []).append((request, budget))
        else:
            request.skip_draft()
    for shared in asking.values():
        if len(shared) > 1 and shared[0][0].drafter.batch_key:
            for (request, _), tree in zip(shared, _proposed(shared), strict=True):
                if isinstance(tree, Exception):
                    request.fail(tree)
                else:
                    guarded(request, request.set_tree, tree)
        else:
            for request, budget in shared:
                guarded(request, request.draft, budget)
    return [request for shared in asking.values() for request, _ in shared]


def _proposed(requests: list[tuple[Request, int]]) -> Sequence[TokenTree | Exception]:
    """A tree or an exception for each request, from drafters with a common ``batch_key``."""
    drafter = type(requests[0][0].drafter)
    try:
        trees = drafter.propose_all([(request.drafter, request.context, budget) for request, budget in requests])
        if len(trees) != len(requests):
            raise UserError(f"{drafter.__name__}.propose_all returned {len(trees)} trees for {len(requests)} requests")
        return trees
    except Exception as error:
        return [error] * len(requests)


DRAFTING = frozenset(("schedule", "draft", "observe"))
VERIFYING = frozenset(("compute", "accept", "commit"))
"""Phases of ``Engine._step`` that count as ``draft_seconds`` and ``verify_seconds`` of ``FinishedStep``. The time of
the other timed phases, in which a length policy runs, is left out: planning for many steps would be charged to one of
them. Untimed work, such as emitting tokens, is in ``other_seconds``."""

Phase = Callable[[Any, Batch], None]


def timed(phase: Phase) -> Phase:
    """Decorator of a phase of ``Engine._step``: reports its duration to the engine's ``timer``, under its name."""
    name = phase.__name__.strip("_")

    @functools.wraps(phase)
    def call(engine: Any, batch: Batch) -> None:
        start = time.perf_counter()
        phase(engine, batch)
        engine.timer.add(name, time.perf_counter() - start, batch)

    return call


class StepTimer:
    """Times each step. ``draft`` and ``verify`` are the seconds of the current step so far, as in ``FinishedStep``."""

    draft = verify = 0.0
    _since: float | None = None
    """Start of the time that is not yet assigned to a step; None after a pause."""

    def begin(self) -> None:
        self.draft = self.verify = 0.0
        if self._since is None:
            self._since = time.perf_counter()

    def add(self, phase: str, seconds: float, batch: Batch) -> None:
        if phase in DRAFTING:
            self.draft += seconds
        elif phase in VERIFYING:
            self.verify += seconds
        elif self._since is not None:
            self._since += seconds

    def spent(self) -> tuple[float, float, float]:
        """Seconds of drafting, verifying and other work of this step. Later work belongs to the next step."""
        assert self._since is not None
        now = time.perf_counter()
        other, self._since = max(now - self._since - self.draft - self.verify, 0.0), now
        return self.draft, self.verify, other

    def end(self, busy: bool) -> None:
        """The step is over; ``busy``: the next one follows immediately."""
        if not busy:
            self._since = None

    def fail(self) -> None:
        """The target raised an error: the time of this step is discarded."""
        self._since = None
