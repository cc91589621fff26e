"""What steps and drafts cost, learned from the times of the run itself."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from itertools import islice
from operator import mul

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

KEPT = 9
"""Samples of a size whose median counts: the speed of a machine changes, so old ones must go."""
PER_DOUBLING = 4
"""Classes of sizes for each doubling, from that size on; smaller sizes are classes of their own."""
MEMORY = 100
"""Samples over which the slowdown by context is learned; a class' own averages take half as many."""
LITTLE_SPREAD = 50_000
"""Square tokens: while context lengths have differed by less in sum, their slope is mostly noise."""
FEW, SURPRISE = 3, 2.0
"""With fewer samples than these, a size is not believed to take longer than so many times what smaller sizes tell: one
slow step would keep it from ever being tried again."""
OUTLIER = 0.3
"""In log seconds: what a single step may say at the most. Slow steps are a third slower and more."""
LITTLE = 0.01
"""In log seconds: a difference for which nothing is reckoned anew."""
SHORTEST = 1e-9
"""Seconds: what a clock that did not move is taken for."""


class StepCosts:
    """Seconds of a target's step by its rows, from noisy samples.

    Sizes are put into classes; of every class the lower median of the latest samples counts, so that rare slow steps do
    not. Between classes the time is interpolated, and beyond them it grows as over the last doubling. It never falls
    with size: late steps are slow, never fast, so what a larger size takes is enough.

    When a size has become much faster or slower, an era ends: as soon as two sizes were seen in the new one, larger
    ones of the old one no longer count. A step that reads more context takes longer: the relative slowdown per token is
    the common slope of log time over context length within the classes.
    """

    def __init__(self) -> None:
        self._classes: dict[int, _Class] = {}
        self._era = 0
        self._spread = self._slope = 0.0
        self._knots: tuple[Floats, Floats] | None = None

    @property
    def samples(self) -> int:
        """How many of the latest steps are remembered."""
        return sum(len(known.samples) for known in self._classes.values())

    @property
    def per_token(self) -> float:
        """Relative slowdown per token of context."""
        return max(self._slope / (self._spread + LITTLE_SPREAD), 0.0)

    def add(self, rows: int, seconds: float, context: int) -> float:
        """A step of so many ``rows`` (tokens), whose sequences held ``context`` tokens, took so many seconds. Returns
        the factor by which all times may have changed with it, mostly 1."""
        taken = math.log(max(seconds, SHORTEST))
        index = _class_of(rows)
        known = self._classes.setdefault(index, _Class(self._era))
        changed = 0.0
        if known.era < self._era:
            known.clear()
        elif known.samples:
            changed = known.changed(taken - self.per_token * context, self.per_token)
        self._era += changed != 0
        known.era = self._era
        away, off = known.add(rows, taken, context)
        keep = 1 - 1 / MEMORY
        self._spread = self._spread * keep + away * away
        self._slope = self._slope * keep + away * off
        self._knots = None
        return math.exp(changed)

    def outdated(self, rows: int) -> bool:
        """Whether steps of that size were last seen before all times changed."""
        known = self._classes.get(_class_of(rows))
        return known is not None and known.era < self._era

    def at(self, rows: Floats, context: int) -> Floats:
        """Seconds of steps of so many ``rows`` with ``context`` tokens before them; 0 while nothing is known."""
        if not self._classes:
            return np.zeros(len(rows))
        if self._knots is None:
            self._knots = self._settle()
        sizes, seconds = self._knots
        half = np.interp(sizes[-1] / 2, sizes, seconds)
        slope = (seconds[-1] - half) / (sizes[-1] - max(sizes[-1] / 2, sizes[0])) if len(sizes) > 1 else 0.0
        beyond = np.maximum(rows - sizes[-1], 0.0) * slope
        result: Floats = np.interp(rows, sizes, seconds) + beyond
        return result * math.exp(self.per_token * context)

    def _settle(self) -> tuple[Floats, Floats]:
        counted = sorted(self._classes.values(), key=lambda known: known.size)
        fresh = [known for known in counted if known.era == self._era]
        if len(fresh) > 1:
            counted = [known for known in counted if known.era == self._era or known.size < fresh[0].size]
        sizes = [known.size for known in counted]
        seconds = [math.exp(known.typical(self.per_token)) for known in counted]
        if len(fresh) < len(counted):
            # What is old is no slower than a larger size now, and no faster than a smaller one.
            place = counted.index(fresh[0])
            now = seconds[place]
            seconds = [min(one, now) if i < place else max(one, now) for i, one in enumerate(seconds)]
        for place, known in enumerate(counted):
            if place and len(known.samples) < FEW:
                seconds[place] = min(seconds[place], SURPRISE * _on_line(sizes[:place], seconds[:place], known.size))
        return np.array(sizes), np.minimum.accumulate(seconds[::-1])[::-1]


def _class_of(rows: int) -> int:
    return rows if rows < PER_DOUBLING else int(PER_DOUBLING * (1 + math.log2(rows / PER_DOUBLING)))


def _on_line(sizes: list[float], seconds: list[float], size: float) -> float:
    """The seconds at ``size``, beyond the last knot on a line through the last two."""
    place = min(bisect_left(sizes, size), len(sizes) - 1)
    if place == 0:
        return seconds[0]
    slope = (seconds[place] - seconds[place - 1]) / (sizes[place] - sizes[place - 1])
    return seconds[place] + max(slope, 0.0) * (size - sizes[place])


class _Class:
    """Samples of about the same size: (log seconds, context). ``era`` is that of the last one."""

    def __init__(self, era: int) -> None:
        self.era, self.size = era, 0.0
        self.samples: deque[tuple[float, int]] = deque(maxlen=KEPT)
        self._count = 0
        self._seconds = self._context = 0.0
        self._typical: tuple[float, float] | None = None
        """The slowdown per token that it was reckoned with, and the median."""

    def add(self, size: int, log_seconds: float, context: int) -> tuple[float, float]:
        """Returns how far context and log time were from their averages so far."""
        self.samples.append((log_seconds, context))
        self._typical = None
        if self._count == 0:
            self._seconds, self._context = log_seconds, context
        self._count = min(self._count + 1, MEMORY // 2)
        away = context - self._context
        off = min(max(log_seconds - self._seconds, -OUTLIER), OUTLIER)
        self.size += (size - self.size) / self._count
        self._context += away / self._count
        self._seconds += off / self._count
        return away, off

    def clear(self) -> None:
        """What was seen no longer counts."""
        self.samples.clear()
        self._typical = None

    def changed(self, settled: float, per_token: float) -> float:
        """By how many log seconds the size has become slower for good, given one more step of so many log seconds
        without context: one that is much faster shows it, or the third slow one in a row. Drops what no longer
        counts."""
        typical, known = self.typical(per_token), len(self.samples) >= FEW
        latest = [seconds - per_token * context for seconds, context in islice(reversed(self.samples), FEW - 1)]
        slower = min(settled, *latest) - typical
        if settled < typical - OUTLIER:
            self.clear()
            return settled - typical if known else 0.0
        if known and slower > OUTLIER:
            while len(self.samples) >= FEW:
                self.samples.popleft()
            self._typical = None
            return slower
        return 0.0

    def typical(self, per_token: float) -> float:
        """Log seconds without context: the lower median."""
        if self._typical is None or abs(per_token - self._typical[0]) * self._context > LITTLE:
            settled = sorted([seconds - per_token * context for seconds, context in self.samples])
            self._typical = per_token, settled[(len(settled) - 1) // 2]
        return self._typical[1]


class DraftCosts:
    """Seconds of drafting as a sum: so much for each step, each request that drafts, each level of the deepest draft,
    each token drafted, and each token that a drafter had to catch up with; none of them below 0.

    Least squares over the latest steps, by one round of coordinate descent for each, so that what the latest steps
    cannot tell apart stays as it was.
    """

    MEMORY = 32
    """Steps that are remembered."""

    def __init__(self) -> None:
        self.weights = [0.0] * 5
        self._squares = [[0.0] * 5 for _ in self.weights]
        self._products = [0.0] * 5
        self._before = 0.0

    def add(self, asked: int, depth: int, nodes: int, behind: float, seconds: float) -> None:
        """Drafting took so many seconds in a step in which so many requests were asked."""
        terms = (1.0, asked, depth, nodes, behind)
        # One slow step is not believed, two in a row are.
        believed = SURPRISE * max(sum(map(mul, self.weights, terms)), self._before)
        self._before, seconds = seconds, min(seconds, believed) if self._before else seconds
        keep = 1 - 1 / self.MEMORY
        for number, term in enumerate(terms):
            row = self._squares[number] = [
                old * keep + term * other for old, other in zip(self._squares[number], terms, strict=True)
            ]
            self._products[number] = self._products[number] * keep + term * seconds
            if row[number] > 0.5:
                missing = (self._products[number] - sum(map(mul, row, self.weights))) / row[number]
                self.weights[number] = max(self.weights[number] + missing, 0.0)

    def scale(self, factor: float) -> None:
        """All times have changed by that factor."""
        self.weights = [weight * factor for weight in self.weights]
        self._products = [product * factor for product in self._products]
        self._before *= factor

    def at(self, asked: Floats, depth: Floats, nodes: Floats, behind: Floats) -> Floats:
        """Seconds for each of several cases."""
        step, each, level, node, late = self.weights
        result: Floats = step + each * asked + level * depth + node * nodes + late * behind
        return result
