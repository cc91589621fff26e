"""Another machine's speed on this one: each draft and each step lasts as long as a cost table says."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any, Protocol

from ianvs_specdec.engine.batch import StepTimer
from ianvs_specdec.engine.costs import CostTable

if TYPE_CHECKING:
    from ianvs_specdec.engine.batch import Batch

log = logging.getLogger(__name__)

MARGIN = 1.25
"""By how much this machine is to be faster than the table, so that its slower steps are, too."""
STEPS_OF_SCALE = (1.0, 2.0, 5.0)
"""Scales that are chosen, times a power of ten: back ends of one job come to the same."""

ROUNDING = 1e-9
"""Share by which a scale may miss what is needed: the last bits of a division."""

LATE_WAKING = 3e-4
"""Seconds by which a sleep may end late; that long is waited awake."""


DRAFTS_KEPT = 1 << 14
"""Drafts of which the seconds are kept: most are as those of a step before, and a simulation asks at every step."""


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


class Emulation(StepTimer):
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
        self._draft_seconds = lru_cache(DRAFTS_KEPT)(costs.draft_seconds)
        self._at = 0.0
        self._idle = True
        self._overran = False

    def describe(self) -> Mapping[str, Any]:
        costs = self.costs
        return {"machine": costs.machine, "model": costs.model, "method": costs.method, "scale": self.scale}

    def progress(self) -> Mapping[str, Any]:
        """``describe``, and how many steps there were and how many of them overran."""
        return {**self.describe(), "steps": self.steps, "overruns": self.overruns}

    def begin(self) -> None:
        if self._idle:
            self._at = self._clock.now()
        self.draft = self.verify = 0.0
        self._overran = False

    def add(self, phase: str, seconds: float, batch: Batch) -> None:
        if phase == "draft" and batch.drafted:
            sizes = tuple([request.drafted for request in batch.drafted])
            behind = sum([request.stats.unread_tokens for request in batch.drafted])
            self.draft = self._hold(self._draft_seconds(sizes, behind))
        elif phase == "compute" and batch.outputs:
            prompts = sum([request.stats.context_tokens for request in batch.reading])
            decoding = batch.rows, batch.context, len(batch.decoding)
            self.verify = self._hold(self.costs.step_seconds(*decoding, batch.prompt_rows, prompts))
            self.steps += 1
            self.overruns += self._overran

    def spent(self) -> tuple[float, float, float]:
        return self.draft, self.verify, 0.0

    def fail(self) -> None:
        self._at = self._clock.now()

    def end(self, busy: bool) -> None:
        self._idle = not busy

    def tell(self) -> None:
        if self.overruns:
            log.warning(
                "emulation: %d of %d steps took longer than %s would, times the scale of %g, by %.3g s in all: "
                "set a larger scale",
                *(self.overruns, self.steps, self.costs.machine or "the table's machine", self.scale, self.late),
            )

    def _hold(self, seconds: float) -> float:
        """Wait until ``seconds`` of the table have passed. Returns those that count."""
        due, now = self._at + seconds * self.scale, self._clock.now()
        if now > due:
            self._overran = True
            self.late += now - due
            due = now
        else:
            self._clock.until(due)
        counted, self._at = due - self._at, due
        return counted


def scale_for(costs: CostTable, own: CostTable, at_once: int) -> float:
    """By what to stretch ``costs`` so that a machine with the costs ``own`` is faster at all points of the table that
    steps of ``at_once`` requests can reach; at least 1."""
    most = at_once * (1 + costs.largest_draft)
    # Between the knots of both tables the ratio of two lines has no maximum.
    rows = {min(knot, most) for knot in (*costs.step.first, *own.step.first, at_once) if knot}
    pieces = {knot for knot in (*costs.prompt.first, *own.prompt.first) if 0 < knot <= (own.prompt_rows or knot)}
    ratios = [1.0 / MARGIN]
    for row, context in product(rows, {*costs.step.second, *own.step.second}):
        of_step = row, min(context, costs.step.second[-1]), min(row, at_once)
        ratios.append(_ratio(own.step_seconds(*of_step), costs.step_seconds(*of_step)))
    for piece in pieces:
        reading = 0, 0, 0, piece, piece
        ratios.append(_ratio(own.step_seconds(*reading), costs.step_seconds(*reading)))
    if costs.draft is not None:
        for requests, budget in product(costs.draft.first, costs.draft.second):
            drafts = [budget] * min(max(requests, 1), at_once)
            ratios.append(_ratio(own.draft_seconds(drafts), costs.draft_seconds(drafts)))
    needed = MARGIN * max(ratios)
    power = 10.0 ** math.floor(math.log10(needed))
    return next(power * step for step in (*STEPS_OF_SCALE, 10.0) if power * step >= needed * (1 - ROUNDING))


def _ratio(own: float, theirs: float) -> float:
    """0 for a step without time in the table, which cannot be stretched."""
    return own / theirs if theirs > 0 else 0.0
