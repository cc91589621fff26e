"""What a step costs, learned from the times of the run itself."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from itertools import accumulate

KEPT = 15
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
"""In log seconds: what a single step may say about the slope at the most. Slow steps are a third slower and more."""


class Timing:
    """Seconds as a function of a size, from noisy samples.

    Sizes are put into classes; of every class the lower median of the latest samples counts, so that rare slow steps do
    not. Between classes the time is interpolated, beyond them it grows as between the last two. It never falls with
    size.

    A step that reads more context takes longer: the relative slowdown per token is the common slope of log time
    over context length within the classes.
    """

    def __init__(self) -> None:
        self._classes: dict[int, _Class] = {}
        self._spread = self._slope = 0.0
        self._knots: tuple[list[float], list[float]] | None = None

    def add(self, size: int, seconds: float, context: int) -> None:
        index = size if size < PER_DOUBLING else int(PER_DOUBLING * (1 + math.log2(size / PER_DOUBLING)))
        if index not in self._classes:
            self._classes[index] = _Class()
        away, off = self._classes[index].add(size, math.log(seconds), context)
        keep = 1 - 1 / MEMORY
        self._spread = self._spread * keep + away * away
        self._slope = self._slope * keep + away * off
        self._knots = None

    @property
    def per_token(self) -> float:
        """Relative slowdown per token of context."""
        return max(self._slope / (self._spread + LITTLE_SPREAD), 0.0)

    def samples(self, size: int) -> int:
        """How often that very size, below ``PER_DOUBLING``, was seen lately."""
        return len(self._classes[size].samples) if size in self._classes else 0

    def at(self, size: float, context: int) -> float:
        """Seconds at ``size`` with ``context`` tokens before it; 0 while nothing is known."""
        if not self._classes:
            return 0.0
        if self._knots is None:
            self._knots = self._settle()
        return _on_line(*self._knots, size) * math.exp(self.per_token * context)

    def _settle(self) -> tuple[list[float], list[float]]:
        sizes: list[float] = []
        seconds: list[float] = []
        for _, known in sorted(self._classes.items()):
            time = known.typical(self.per_token)
            if sizes and len(known.samples) < FEW:
                time = min(time, SURPRISE * _on_line(sizes, seconds, known.size))
            sizes.append(known.size)
            seconds.append(time)
        return sizes, list(accumulate(reversed(seconds), min))[::-1]


def _on_line(sizes: list[float], seconds: list[float], size: float) -> float:
    """The seconds at ``size``, between knots and beyond the last one on a line through two of them."""
    place = min(bisect_left(sizes, size), len(sizes) - 1)
    if place == 0:
        return seconds[0]
    slope = (seconds[place] - seconds[place - 1]) / (sizes[place] - sizes[place - 1])
    return seconds[place] + max(slope, 0.0) * (size - sizes[place])


class _Class:
    """Samples of about the same size: (log seconds, context)."""

    def __init__(self) -> None:
        self.size = 0.0
        self.samples: deque[tuple[float, int]] = deque(maxlen=KEPT)
        self._count = 0
        self._seconds = self._context = 0.0

    def add(self, size: int, log_seconds: float, context: int) -> tuple[float, float]:
        """Returns how far context and log time were from their averages so far."""
        self.samples.append((log_seconds, context))
        if self._count == 0:
            self._seconds, self._context = log_seconds, context
        self._count = min(self._count + 1, MEMORY // 2)
        away = context - self._context
        off = min(max(log_seconds - self._seconds, -OUTLIER), OUTLIER)
        self.size += (size - self.size) / self._count
        self._context += away / self._count
        self._seconds += off / self._count
        return away, off

    def typical(self, per_token: float) -> float:
        settled = sorted(log_seconds - per_token * context for log_seconds, context in self.samples)
        return math.exp(settled[(len(settled) - 1) // 2])
