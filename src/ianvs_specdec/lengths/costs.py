"""What steps cost, learned from the times of the run itself."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ianvs_specdec.lengths.beside import Beside

Floats = NDArray[np.float64]

WARM = 6
"""Steps until a machine is warm: the first ones take several times as long. When one of them is clearly faster than
those before, these were not yet what steps take."""
PER_DOUBLING = 4
"""Classes of sizes for each doubling, from that size on; smaller sizes are classes of their own."""
NOISE = 0.1**2
"""The variance of the log time of a step, as all variances here."""
PACE = 0.04**2
"""By how much the speed of a machine changes from step to step."""
SHAPE, FRESH, AGEING, UNKNOWN = 0.01**2, 20, 0.03**2, 1.0**2
"""By how much a size's share of it changes from step to step; more of it when the size was not seen for so many steps;
at most as if nothing were known."""
BEND = 0.02
"""How far off, as a share, a size may be from the line through those around it."""
FEW = 3
"""Steps of a size until a surprise tells of the speed rather than of the size, and until a bend there is believed."""
OUTLIER = 0.3
"""In log seconds: what a single step may say at the most. Slow steps are a third slower and more."""
NEW = 0.7
"""In log seconds: by how much the first step of a size may be above what was expected."""
UNUSUAL = 0.17
"""In log seconds: twice in a row on the same side, it is no noise."""
OFTEN = 50
"""Steps of a size over which its averages are."""
SOME, CALM = 4, 0.1
"""A step of a size that was seen often tells little if its log seconds, or those of the step before, are as expected
but for so much: one in some is learned from. So it is with drafts."""
ROWS = 0.05
"""The share of a step's work that is at least for its rows."""
SHORTEST = 1e-9
"""Seconds: what a clock that did not move is taken for."""


class StepCosts:
    """Seconds of a target's step by its rows, from noisy samples.

    The log of a time is a sum: how fast the machine is at the moment, and how much work a step of that size is. A
    machine that is shared changes its speed all the time, so the speed follows the latest steps, and the sizes what was
    always so: a Kalman filter, one term at a time. What speed has done to a size that was not seen is known, then.

    Sizes are put into classes. Between classes the time is interpolated, beyond them it grows as over the last
    doubling, and it never falls with size. What a step takes beside its rows, for the context that it reads and for
    each request, is learned from steps of a class that differ in these: rows of drafts may be cheaper than requests.
    """

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        """What the steps so far have taken tells nothing of those to come."""
        self._sizes: dict[int, _Size] = {}
        self._speed, self._speed_variance = 0.0, 0.0
        self._before = 0.0
        self._latest: _Size | None = None
        self._same, self._elsewhere = 0, 0.0
        """How many steps before the latest were of its size; the surprise of the one before these."""
        self.changed = False
        """Whether times have changed; whoever heeds it sets it back."""
        self.disputed = False
        """Whether the latest two steps, both of a size that is seldom seen, contradict each other: one was late."""
        self._beside = Beside()
        self._knots: tuple[Floats, Floats, Floats] | None = None
        self.samples = 0
        """Steps so far."""

    @property
    def warm(self) -> bool:
        """Whether a step takes what it will take from now on."""
        return self.samples >= WARM

    @property
    def speed(self) -> float:
        """Seconds of the unit in which sizes are kept: all of the machine's work takes longer with it."""
        return math.exp(self._speed)

    def age(self, rows: int) -> int:
        """Steps since one of that size."""
        size = self._sizes.get(_class_of(rows))
        return self.samples - size.when if size else self.samples

    def add(self, rows: int, seconds: float, context: int, requests: int) -> bool:
        """A step of so many ``rows`` (tokens) of so many ``requests``, whose sequences held ``context`` tokens, took so
        many seconds. Returns whether that told anything."""
        settled = math.log(max(seconds, SHORTEST))
        self.samples += 1
        if self.samples == 1:
            self._speed = settled
        self._speed_variance += PACE
        size, doubtful = self._size(rows, settled, context, requests)
        if size is self._latest:
            self._same += 1
        else:
            self._same, self._elsewhere, self._latest = 0, self._before, size
        away = context - size.context, requests - size.requests
        expected = size.work_at(self._beside.of(*away))
        surprise = settled - self._speed - expected
        if self.samples <= WARM and surprise < -OUTLIER:
            self._forget()
            return self.add(rows, seconds, context, requests)
        if self.samples % SOME and size.count == OFTEN and min(abs(surprise), abs(self._before)) < CALM:
            self._before = size.before = surprise
            return False
        surprise, variance = self._believed(surprise, size)
        doubt = self._speed_variance + variance + NOISE
        self._speed += surprise * self._speed_variance / doubt
        size.work += surprise * variance / doubt
        self._speed_variance *= 1 - self._speed_variance / doubt
        size.variance = min(size.variance, variance * (1 - variance / doubt)) if variance else size.variance
        if doubtful:
            # It keeps nearly all of its doubt, so that it may be hoped for less.
            size.variance = NEW**2
        self._beside.learn(rows - size.rows, *away, math.exp(expected), surprise)
        size.seen(rows, *away, self.samples, self._speed, self._beside)
        self._knots = None
        return True

    def _size(self, rows: int, settled: float, context: int, requests: int) -> tuple[_Size, bool]:
        """What is known of steps of that size, and whether it is doubtful: the first step of a new size may be late, as
        any other. It is hardly twice what those around it say."""
        index = _class_of(rows)
        if index in self._sizes:
            return self._sizes[index], False
        expected = float(np.log(self.at(np.array([float(rows)]), context, requests))[0]) if self._sizes else settled
        work = min(settled, expected + NEW) - self._speed
        self._sizes[index] = _Size(work, UNKNOWN, float(rows), float(context), float(requests))
        return self._sizes[index], settled > expected + OUTLIER

    def at(self, rows: Floats, context: int, requests: int, hoped: bool = False) -> Floats:
        """Seconds of steps of so many ``rows`` of so many ``requests`` with ``context`` tokens before them; 0 while
        nothing is known. What may be ``hoped`` for is less where little is known, or for long."""
        if not self._sizes:
            return np.zeros(rows.shape)
        if self._knots is None:
            self._knots = self._settle()
        sizes, work = self._knots[0], self._knots[1 + hoped]
        half = np.interp(sizes[-1] / 2, sizes, work)
        slope = (work[-1] - half) / (sizes[-1] - max(sizes[-1] / 2, sizes[0])) if len(sizes) > 1 else 0.0
        beyond = np.maximum(rows - sizes[-1], 0.0) * slope
        result: Floats = (np.interp(rows, sizes, work) + beyond + self._beside.of(context, requests)) * self.speed
        return result

    def _believed(self, surprise: float, size: _Size) -> tuple[float, float]:
        """What of a surprise counts, and how uncertain the size's work is by it: one that is alone for its size counts
        little, late or fast, a second one on the same side all. If the step of another size before them surprised as
        well, the speed has changed, else the size has. Late and fast steps are treated alike: if only one of them moved
        the speed, it would drift away from the sizes."""
        side, variance = math.copysign(1.0, surprise), size.variance_now(self.samples, self._speed)
        sure = side * size.before
        believed = side * min(abs(surprise), max(OUTLIER, sure))
        # Of a size that is seldom seen, two steps that contradict each other are no more than one.
        self.disputed = self._same == 1 and size.count < OFTEN and min(abs(surprise), -sure) > UNUSUAL
        if self.disputed:
            self._same = 0
        lasting = min(abs(surprise), sure) > UNUSUAL
        if lasting and size.count >= FEW:
            self.changed = True
        if size.count < FEW:
            variance = max(variance, OUTLIER**2)
        elif lasting and side * self._elsewhere > UNUSUAL:
            self._speed_variance = max(self._speed_variance, OUTLIER**2)
        elif lasting:
            variance = max(variance, OUTLIER**2)
        if self._same and size.count >= FEW and not (lasting and self._same == 1):
            # Only a step after one of another size tells what a size is, and one more, which confirms it.
            variance = 0.0
        self._before = size.before = surprise
        return believed, variance

    def _settle(self) -> tuple[Floats, Floats, Floats]:
        """Sizes and their work, smoothed where little is known: each size is about on the line through those around it.
        And the least work that may be hoped for."""
        known = sorted(self._sizes.values(), key=lambda size: size.rows)
        rows, whole = np.array([size.rows for size in known]), np.exp([size.work for size in known])
        work = np.maximum(whole - [self._beside.of(size.context, size.requests) for size in known], ROWS * whole)
        variances = np.array([size.variance_now(self.samples, self._speed) for size in known])
        likely = np.exp(2 * np.sqrt(variances))
        least, most = work / likely, work * likely
        if len(known) > 2:
            # What steps of the latest size take is known, whatever part of it is the machine's speed.
            now = np.array([size is self._latest for size in known])
            spreads = np.where(now, np.minimum(variances, NOISE / (self._same + 1)), variances) * whole**2
            low, middle, high = rows[:-2], rows[1:-1], rows[2:]
            share, place = (middle - low) / (high - low), np.arange(len(middle))
            bends = np.zeros((len(middle), len(known)))
            bends[place, place], bends[place, place + 1], bends[place, place + 2] = share - 1, 1.0, -share
            # A bend that is more than the sizes' uncertainty is one of the machine's own; what was seen once or twice
            # may have been late.
            often = np.array([size.count >= FEW for size in known])
            own = np.maximum((bends @ work) ** 2 - bends**2 @ spreads, 0.0) * (often[:-2] & often[1:-1] & often[2:])
            bends /= np.sqrt((BEND * whole[1:-1]) ** 2 + own)[:, None]
            smooth = np.linalg.solve(np.diag(1 / spreads) + bends.T @ bends, work / spreads)
            # Near sizes that take much longer, the line may go below nothing.
            work = np.clip(smooth, least, most)
        # What the latest size takes bounds the others: a change is seen there first. Fewer rows do not take more, and
        # as many small steps as have all the rows of a large one do not take less than it.
        latest = known.index(self._latest) if self._latest else 0
        few, many, one = slice(latest), slice(latest, None), work[latest]
        split = one / np.ceil(rows[latest] / rows[few]), one * np.ceil(rows[many] / rows[latest])
        work[few] = np.clip(work[few], np.minimum(split[0], most[few]), one)
        work[many] = np.clip(work[many], one, np.maximum(split[1], least[many]))
        return rows, _rising(work), _rising(work * np.exp(-np.sqrt(variances)))


def _rising(values: Floats) -> Floats:
    """The values, changed so that none is below one before it."""
    result: Floats = (np.maximum.accumulate(values) + np.minimum.accumulate(values[::-1])[::-1]) / 2
    return result


@lru_cache(maxsize=4096)
def _class_of(rows: int) -> int:
    return rows if rows < PER_DOUBLING else int(PER_DOUBLING * (1 + math.log2(rows / PER_DOUBLING)))


@dataclass(eq=False, slots=True)
class _Size:
    """Steps of about the same size: the log of their ``work`` and its variance when it was last seen, at step ``when``
    and the ``speed`` of then, how surprising the one ``before`` was, averages of their rows and context."""

    work: float
    variance: float
    rows: float
    context: float
    requests: float
    count: int = 0
    when: int = 0
    speed: float = 0.0
    before: float = 0.0

    def variance_now(self, samples: int, speed: float) -> float:
        """What has changed the machine's speed may have changed this size's share as well."""
        changed, age = max(abs(speed - self.speed) - OUTLIER, 0.0), samples - self.when
        aged = SHAPE * age + AGEING * max(age - FRESH, 0)
        return min(self.variance + aged + changed**2, UNKNOWN)

    def work_at(self, beside: float) -> float:
        """The log of its work where that beside the rows is so much more."""
        whole = math.exp(self.work)
        return math.log(max(whole + beside, ROWS * whole)) if beside else self.work

    def seen(self, rows: int, context: float, requests: float, samples: int, speed: float, beside: Beside) -> None:
        """A step of so many rows, with so much context and so many requests more than the average."""
        self.when, self.speed = samples, speed
        self.count = min(self.count + 1, OFTEN)
        context, requests = context / self.count, requests / self.count
        self.rows += (rows - self.rows) / self.count
        self.work = self.work_at(beside.of(context, requests))
        self.context += context
        self.requests += requests
