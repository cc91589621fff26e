"""Another machine's speed on this one: each draft and each step lasts as long as a cost table says."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ianvs_specdec.decoding.costs import CostTable
from ianvs_specdec.decoding.meter import Meter

if TYPE_CHECKING:
    from ianvs_specdec.decoding.request import Request

log = logging.getLogger(__name__)

LATE_WAKING = 3e-4
"""Seconds by which a sleep may end late; that long is waited awake."""


class Clock(Protocol):
    def now(self) -> float:
        """Seconds, from any moment on."""

    def until(self, moment: float) -> None:
        """Return at ``moment``, or at once where it has passed."""


class WallClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        return time.perf_counter()

    def until(self, moment: float) -> None:
        pause = moment - time.perf_counter() - LATE_WAKING
        if pause > 0:
            time.sleep(pause)
        while time.perf_counter() < moment:
            pass


class Emulation(Meter):
    """Stretches drafts and steps to ``scale`` times the seconds that ``costs`` has for them.

    What the engine does between its steps, such as putting out tokens, is within the next one's time. A step for which
    this machine needs longer than that has ``overrun``, and the times after it count from its end.
    """

    def __init__(self, costs: CostTable, scale: float = 1.0, clock: Clock | None = None) -> None:
        self.costs, self.scale = costs, scale
        self.steps = self.overruns = 0
        self.late = 0.0
        """Seconds that steps took longer than they should have, in all."""
        self._clock: Clock = clock or WallClock()
        self._at = 0.0
        self._idle = True
        self._overran = False

    def describe(self) -> Mapping[str, Any]:
        """What is emulated, for records of what was measured."""
        costs = self.costs
        return {"machine": costs.machine, "model": costs.model, "method": costs.method, "scale": self.scale}

    def begin(self) -> None:
        if self._idle:
            self._at = self._clock.now()
        self.draft = self.verify = 0.0
        self._overran = False

    def drafted(self, asked: Sequence[Request]) -> None:
        if asked:
            sizes = [request.drafted for request in asked]
            behind = sum([request.stats.behind for request in asked])
            self.draft = self._hold(self.costs.draft_seconds(sizes, behind))

    def computed(self, rows: int, prompt_rows: int, context: int, requests: int) -> None:
        self.verify = self._hold(self.costs.step_seconds(rows, prompt_rows, context, requests))
        self.steps += 1
        self.overruns += self._overran

    def verified(self) -> None:
        """Within the next step's time."""

    emitted = committed = observed = verified

    def end(self, busy: bool) -> None:
        self._idle = not busy

    def tell(self) -> None:
        """Log how many steps overran, if any."""
        if self.overruns:
            log.warning(
                "emulation: %d of %d steps took longer than %s would, times the scale of %g, by %.3g s in all: "
                "set a larger scale",
                *(self.overruns, self.steps, self.costs.machine or "the table's machine", self.scale, self.late),
            )

    def _hold(self, seconds: float) -> float:
        """Wait until so many seconds of the table have passed. Returns those that count."""
        due, now = self._at + seconds * self.scale, self._clock.now()
        if now > due:
            self._overran = True
            self.late += now - due
            due = now
        else:
            self._clock.until(due)
        counted, self._at = due - self._at, due
        return counted
