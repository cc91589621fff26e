"""What a step costs, learned from the times of the run itself."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque

KEPT = 15
SURPRISE = 2.0


class Timing:
    """Seconds as a function of a size, from noisy samples.

    Sizes are put into classes, geometric from 4 on; of every class the lower median of the latest samples counts, so
    that rare slow steps do not. Between classes the time is interpolated, beyond them it grows by a share of the last
    slope, ``outlook``, or by ``growth`` of itself per unit while only one class is known. It never falls with size.

    A step that reads more context takes longer: the relative slowdown per token is the common slope of log time
    over context length within the classes.
    """

    def __init__(self, growth: float = 0.0, outlook: float = 1.0) -> None:
        self._growth, self._outlook = growth, outlook
        self._classes: dict[int, _Class] = {}
        self._spread = self._slope = 0.0
        self._knots: tuple[list[float], list[float]] | None = None

    def add(self, size: int, seconds: float, context: int) -> None:
        index = size if size < 4 else int(4 + 4 * math.log2(size / 4))
        found = self._classes.get(index)
        if found is None:
            found = self._classes[index] = _Class(size, math.log(seconds), context)
        else:
            away, off = found.add(size, math.log(seconds), context)
            self._spread = self._spread * 0.99 + away * away
            self._slope = self._slope * 0.99 + away * off
        self._knots = None

    @property
    def per_token(self) -> float:
        """Relative slowdown per token of context. Little evidence counts as none."""
        return min(max(self._slope / (self._spread + 50_000.0), 0.0), 0.002)

    def known(self, size: int, samples: int = 1) -> bool:
        """Whether that very size was seen ``samples`` times (sizes below 4)."""
        return size in self._classes and len(self._classes[size].samples) >= samples

    def at(self, size: float, context: int) -> float:
        """Seconds at ``size`` with ``context`` tokens before it; 0 while nothing is known."""
        if not self._classes:
            return 0.0
        if self._knots is None:
            self._knots = self._settle()
        sizes, seconds = self._knots
        slowdown = math.exp(self.per_token * context)
        place = bisect_left(sizes, size)
        if place == 0:
            return seconds[0] * slowdown
        if place < len(sizes):
            share = (size - sizes[place - 1]) / (sizes[place] - sizes[place - 1])
            return (seconds[place - 1] + share * (seconds[place] - seconds[place - 1])) * slowdown
        return self._beyond(sizes, seconds, size) * slowdown

    def _beyond(self, sizes: list[float], seconds: list[float], size: float) -> float:
        """Seconds at a size larger than all known."""
        if len(sizes) == 1:
            return seconds[0] * (1 + self._growth * (size - sizes[0]))
        slope = (seconds[-1] - seconds[-2]) / (sizes[-1] - sizes[-2])
        return seconds[-1] + self._outlook * max(slope, 0.0) * (size - sizes[-1])

    def _settle(self) -> tuple[list[float], list[float]]:
        per_token = self.per_token
        order = sorted(self._classes)
        sizes = [self._classes[index].size for index in order]
        seconds: list[float] = []
        for place, index in enumerate(order):
            seconds.append(self._classes[index].typical(per_token))
            if place and len(self._classes[index].samples) < 3:
                seconds[-1] = min(seconds[-1], SURPRISE * self._beyond(sizes[:place], seconds[:-1], sizes[place]))
        for i in range(len(seconds) - 2, -1, -1):
            seconds[i] = min(seconds[i], seconds[i + 1])
        return sizes, seconds


class _Class:
    """Samples of about the same size: (log seconds, context)."""

    def __init__(self, size: int, log_seconds: float, context: int) -> None:
        self.size = float(size)
        self.samples = deque([(log_seconds, context)], KEPT)
        self._count, self._seconds, self._context = 1.0, log_seconds, float(context)

    def add(self, size: int, log_seconds: float, context: int) -> tuple[float, float]:
        """Returns how far context and log time were from their averages so far."""
        self.samples.append((log_seconds, context))
        self._count = min(self._count + 1, 50)
        away = context - self._context
        off = min(max(log_seconds - self._seconds, -0.3), 0.3)
        self.size += (size - self.size) / self._count
        self._context += away / self._count
        self._seconds += off / self._count
        return away, off

    def typical(self, per_token: float) -> float:
        settled = sorted(log_seconds - per_token * context for log_seconds, context in self.samples)
        return math.exp(settled[(len(settled) - 1) // 2])
