"""Where the time of the engine's steps goes."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ianvs_specdec.engine.batch import Batch

DRAFTING = frozenset(("schedule", "draft", "observe"))
VERIFYING = frozenset(("compute", "accept", "commit"))
"""Phases of ``Engine.step`` by the seconds of ``Finished`` in which they count. What a length takes in the others is in
no step's time: a plan for many steps would fall upon one of them, most often one that tries something. All that is not
``metered``, such as putting out tokens, is in ``other_seconds``."""

Phase = Callable[[Any, "Batch"], None]


def metered(phase: Phase) -> Phase:
    """Marks a phase of ``Engine.step``: its time goes to the engine's ``meter``, under its name."""
    name = phase.__name__.strip("_")

    @functools.wraps(phase)
    def timed(engine: Any, batch: Batch) -> None:
        began = time.perf_counter()
        phase(engine, batch)
        engine.meter.add(name, time.perf_counter() - began, batch)

    return timed


class Meter:
    """Measures each step: ``draft`` and ``verify`` are its seconds so far, as ``Finished`` has them."""

    draft = verify = 0.0
    _since: float | None = None
    """The moment up to which time belongs to the steps before, or to no step; None: there was nothing to do in
    between."""

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
        """The step's seconds of drafting, verifying and all others. The next step's others begin here."""
        assert self._since is not None
        now = time.perf_counter()
        other, self._since = max(now - self._since - self.draft - self.verify, 0.0), now
        return self.draft, self.verify, other

    def end(self, busy: bool) -> None:
        """The step is over; ``busy``: there is more to do, so that the next one follows at once."""
        if not busy:
            self._since = None

    def fail(self) -> None:
        """The target could not compute the step: what that took is in no step's time."""
        self._since = None
