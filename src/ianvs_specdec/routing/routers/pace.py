"""How long one side, edge or cloud, takes at present: from the requests that it has answered and those it has not yet.

A request's time is modelled as ``present * weight * spread``. ``weight`` grows with the number of requests that were
under way when it came. ``present``, in seconds, is the median of the last few answers, so that load is noticed, and its
end, after as few. ``spread`` is how far single requests exceed those before and after them, as the wanted percentile.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MEMORY, LATEST, NEIGHBOURS = 256, 5, 3
"""Answers remembered; those that tell the present; those before and after each one that it is compared with."""
FEW, WIDE = 8, 1.25
"""With fewer answers than ``FEW`` the spread is at least ``WIDE``."""
FAR = 3.0
"""An answer that took more than this many times as long as those around it tells no more about weights than that."""


class Pace:
    """``percentile``: of the times to predict. ``expected``: seconds before the first answer, None = nothing is known.
    ``queue``: whether requests are taken to wait for each other until answers tell. Not thread-safe.
    """

    def __init__(self, percentile: float, expected: float | None, queue: bool, clock: Callable[[], float]) -> None:
        self._percentile, self._expected, self._clock = percentile, expected, clock
        self._waiting: dict[int, list[tuple[float, int]]] = {}
        self._seen: deque[tuple[int, float]] = deque(maxlen=MEMORY)
        self._assumed = self._per_request = 1.0 if queue else 0.0
        self._latest: list[float] = []
        self._spread = 1.0
        self.under_way = 0

    @property
    def known(self) -> bool:
        """Whether there has been an answer."""
        return bool(self._seen)

    def began(self, key: int) -> None:
        """A request begins. ``key`` tells it from others that are under way."""
        self._waiting.setdefault(key, []).append((self._clock(), self.under_way))
        self.under_way += 1

    def ended(self, key: int, seconds: float | None) -> None:
        """It has taken so long; infinitely long if it failed, None if nobody can tell."""
        begun = self._waiting.get(key)
        if not begun:
            return
        _, before = begun.pop()
        self.under_way -= 1
        if not begun:
            del self._waiting[key]
        if seconds is not None:
            self._seen.append((before, seconds))
            self._learn()

    def predict(self, *, latest: bool = False) -> float | None:
        """Seconds for a request that begins now, exceeded by no more than the percentile permits; None = unknown.

        ``latest``: as if the last answer alone told the present.
        """
        if not self._seen:
            return self._expected and self._expected * self._weight(self.under_way)
        present = self._latest[-1] if latest else statistics.median([*self._latest, *self._overdue()][-LATEST:])
        return present * self._weight(self.under_way) * self._spread

    def _overdue(self) -> list[float]:
        """What those under way tell of the present, where they have taken longer than is usual: if no answer comes, it
        is all there is to know.
        """
        now, usual = self._clock(), statistics.median(self._latest) * self._spread
        begun = [entry for entries in self._waiting.values() for entry in entries]
        taken = [(now - start) / self._weight(before) for start, before in begun]
        return sorted(seconds for seconds in taken if seconds > usual)

    def _weight(self, before: int) -> float:
        return 1.0 + self._per_request * before

    def _learn(self) -> None:
        before, seconds = np.array(self._seen, dtype=np.float64).T
        self._fit(before, seconds)
        alone = seconds / (1.0 + self._per_request * before)
        self._latest = alone[-LATEST:].tolist()
        around = _around(alone)
        # One failure among answers is far off; in a row of them it is the present.
        usual = ~np.isfinite(around) | (around <= 0)
        excess = np.sort(np.where(usual, 1.0, alone / np.where(usual, 1.0, around)))
        rank = min(len(excess), math.ceil(self._percentile * (len(excess) + 1))) - 1
        self._spread = max(float(excess[rank]), WIDE if len(excess) < FEW else 1.0)

    def _fit(self, before: Floats, seconds: Floats) -> None:
        """By how much each request under way lengthens the next: neighbours in time are compared, so that a change of
        the load does not disturb it.
        """
        usual = _around(seconds)
        told = np.isfinite(usual) & (usual > 0)
        if not told.any():
            return
        relative = np.minimum(seconds[told] / usual[told], FAR) - 1.0
        deviation, mean = (before - _around(before))[told], float(np.mean(before[told]))
        # What is assumed counts like one answer that was as far from the others as is usual here.
        prior = self._assumed / (1.0 + self._assumed * mean)
        slope = max(0.0, (float(deviation @ relative) + prior) / (float(deviation @ deviation) + 1.0))
        self._per_request = slope / (1.0 - min(0.9, slope * mean))


def _around(values: Floats) -> Floats:
    """The median of each value and its neighbours on both sides, float64 [values]."""
    near = min(NEIGHBOURS, len(values) - 1)
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(values, near, mode="reflect"), 2 * near + 1)
    return np.sort(windows, axis=1)[:, near]
