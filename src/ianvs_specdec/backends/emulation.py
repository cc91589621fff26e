"""Emulation of another machine's speed (options ``emulate``, ``emulate_scale``): drafts and steps take as long as a
cost table says."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.engine.batch import StepTimer
from ianvs_specdec.engine.costs import CostTable, read
from ianvs_specdec.engine.loop import MAX_BATCH_SIZE
from ianvs_specdec.records.identity import FileDigests

if TYPE_CHECKING:
    from ianvs_specdec.engine.batch import Batch
    from ianvs_specdec.engine.contracts import Drafter, Target

log = logging.getLogger(__name__)

AUTO = "auto"
MEASURING = 20.0
"""Maximum seconds to measure this machine for the scale ``auto``."""
MARGIN = 1.25
"""Factor by which this machine must be faster than the table, so that its slower steps are, too."""
SCALE_STEPS = (1.0, 2.0, 5.0)
"""Automatic scales, times a power of ten, so that back ends of one job get the same scale."""
ROUNDING = 1e-9
"""Relative tolerance of a scale."""
WAKE_LATENCY = 3e-4
"""Seconds by which a sleep may end late; they are spent in a busy loop."""
CACHED_DRAFTS = 1 << 14
"""Cached draft times: most drafts have the sizes of an earlier step's."""


@dataclass(frozen=True)
class EmulationSettings:
    """A cost table from ``file``, stretched by ``scale``; None = as little as this machine permits."""

    file: Path
    costs: CostTable
    scale: float | None

    @classmethod
    def parse(cls, options: Any, *, drafts: bool) -> EmulationSettings:
        """From options of a back end with ``emulate``; ``drafts``: the method drafts. Raises UserError with the key."""
        file = Path(options.emulate)
        costs = read(file, key="emulate")
        if drafts and costs.draft is None:
            raise UserError(f"{file} has no draft costs, and this method drafts: name another table", key="emulate")
        return cls(file, costs, None if options.emulate_scale == AUTO else options.emulate_scale)

    def identity(self, digests: FileDigests) -> dict[str, Any]:
        return {"table": digests.file(self.file), "scale": AUTO if self.scale is None else self.scale}

    def start(self, target: Target, drafter: Drafter, memory: int | None) -> Emulation:
        """The emulation for an engine. Measures this machine first if no scale is given."""
        from ianvs_specdec.targets.profiling import profile

        scale = self.scale
        if scale is None:
            scale = scale_for(self.costs, profile(target, drafter, MEASURING, memory=memory), MAX_BATCH_SIZE)
        return Emulation(self.costs, scale)


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since an arbitrary moment."""

    def until(self, moment: float) -> None:
        """Sleep until ``moment``, not at all if it has passed."""


class WallClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        return time.perf_counter()

    def until(self, moment: float) -> None:
        pause = moment - time.perf_counter() - WAKE_LATENCY
        if pause > 0:
            time.sleep(pause)
        while time.perf_counter() < moment:
            pass


class Emulation(StepTimer):
    """Stretches drafts and steps to ``scale`` times the seconds in ``costs``.

    Work between steps, such as emitting tokens, counts towards the next one. A step that takes longer on this machine
    is an overrun, and later times count from its end.
    """

    def __init__(self, costs: CostTable, scale: float = 1.0, clock: Clock | None = None) -> None:
        self.costs, self.scale = costs, scale
        self.steps = self.overruns = 0
        self.late = 0.0
        """Total seconds of overruns."""
        self._clock: Clock = clock or WallClock()
        self._draft_seconds = lru_cache(CACHED_DRAFTS)(costs.draft_seconds)
        self._at = 0.0
        self._idle = True
        self._overran = False

    def describe(self) -> Mapping[str, Any]:
        costs = self.costs
        return {"machine": costs.machine, "model": costs.model, "method": costs.method, "scale": self.scale}

    def progress(self) -> Mapping[str, Any]:
        """``describe`` with the numbers of steps and overruns."""
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

    def log_overruns(self) -> None:
        if self.overruns:
            log.warning(
                "emulation: %d of %d steps took longer than on %s at scale %g, by %.3g s in all: set a larger scale",
                *(self.overruns, self.steps, self.costs.machine or "the table's machine", self.scale, self.late),
            )

    def _hold(self, seconds: float) -> float:
        """Wait until ``seconds`` of the table have passed since the last call. Returns the seconds that count."""
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
    """The smallest scale, at least 1, at which a machine with costs ``own`` is faster than ``costs`` at every point
    that steps of ``at_once`` requests can reach."""
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
    return next(power * step for step in (*SCALE_STEPS, 10.0) if power * step >= needed * (1 - ROUNDING))


def _ratio(own: float, theirs: float) -> float:
    """0 for a step that takes no time in the table: it cannot be stretched."""
    return own / theirs if theirs > 0 else 0.0
