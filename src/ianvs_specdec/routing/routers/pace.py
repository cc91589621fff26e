"""How long one side, edge or cloud, takes at present: from the requests that it has answered and those it has not yet.

A request's time is modelled as ``present * weight * spread``. ``weight`` is linear in the length of the query and in
the number of requests that were under way when it came. ``present``, in seconds, is what the last few answers tell, so
that load is noticed, and its end, after as few. ``spread`` is how far single requests exceed those around them, as the
wanted percentile. Weight and spread are learned from the last ``MEMORY`` answers, by comparing neighbours in time, so
that a change of the load does not disturb them.
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

SECONDS = 600.0
"""A spread that was seen longer ago than this may be another one by now."""

FEW, WIDE = 8, 1.25
"""With fewer answers than this, spread is taken for at least so much."""

FAR = 3.0
"""An answer that took more than so many times as long as those around it tells no more about weights than that."""


class Pace:
    """``percentile``: of the times to predict. ``expected``: seconds before the first answer, None = nothing is known.
    ``queue``: whether requests are taken to wait for each other until answers tell. Not thread-safe.
    """

    def __init__(self, percentile: float, expected: float | None, queue: bool, clock: Callable[[], float]) -> None:
        self._percentile, self._expected, self._clock = percentile, expected, clock
        self._assumed = 1.0 if queue else 0.0
        self._waiting: dict[int, list[tuple[float, float, int]]] = {}
        self._seen: deque[tuple[float, float, int, float]] = deque(maxlen=MEMORY)
        self._per_length, self._per_request = 0.0, self._assumed
        self._latest: list[float] = []
        self._spread = 1.0
        self.under_way = 0

    @property
    def known(self) -> bool:
        """Whether there has been an answer."""
        return bool(self._seen)

    def began(self, key: int, length: float) -> None:
        """A request begins. ``key`` tells it from others that are under way; ``length`` is the query's."""
        self._waiting.setdefault(key, []).append((self._clock(), length, self.under_way))
        self.under_way += 1

    def ended(self, key: int, seconds: float | None) -> None:
        """It has taken so long; infinitely long if it failed, None if nobody can tell."""
        begun = self._waiting.get(key)
        if not begun:
            return
        _, length, before = begun.pop()
        self.under_way -= 1
        if not begun:
            del self._waiting[key]
        if seconds is not None:
            self._seen.append((self._clock(), length, before, seconds))
            self._learn()

    def predict(self, length: float, *, latest: bool = False) -> float | None:
        """Seconds for a request that begins now, exceeded by no more than the percentile permits; None = unknown.

        ``latest``: as if the last answer alone told the present.
        """
        if not self._seen:
            return self._expected and self._expected * self._weight(length, self.under_way)
        present = self._latest[-1] if latest else statistics.median([*self._latest, *self._overdue()][-LATEST:])
        return present * self._weight(length, self.under_way) * self._spread

    def _overdue(self) -> list[float]:
        """What those under way tell of the present, where they have taken longer than is usual: if no answer comes, it
        is all there is to know.
        """
        now, usual = self._clock(), statistics.median(self._latest) * self._spread
        begun = [entry for entries in self._waiting.values() for entry in entries]
        taken = [(now - start) / self._weight(length, before) for start, length, before in begun]
        return sorted(seconds for seconds in taken if seconds > usual)

    def _weight(self, length: float, before: int) -> float:
        return 1.0 + self._per_length * length + self._per_request * before

    def _learn(self) -> None:
        when, length, before, seconds = np.array(self._seen, dtype=np.float64).T
        self._fit(length, before, seconds)
        alone = seconds / (1.0 + self._per_length * length + self._per_request * before)
        self._latest = alone[-LATEST:].tolist()
        self._spread = self._spread_of(alone[when >= when[-1] - SECONDS])

    def _fit(self, length: Floats, before: Floats, seconds: Floats) -> None:
        """Slopes relative to an answer of no length with nothing under way; none is below 0."""
        usual = _around(seconds)
        told = np.isfinite(usual) & (usual > 0)
        if not told.any():
            return
        relative = np.minimum(seconds[told] / usual[told], FAR) - 1.0
        slopes, means = [], []
        for values, assumed in ((before, self._assumed), (length, 0.0)):
            mean = float(np.mean(values[told]))
            # What is assumed counts like one answer that was as far from the others as is usual here.
            unit = 1.0 if assumed or values is before else max(mean, 1.0)
            deviation = (values - _around(values))[told] / unit
            prior = assumed / (1.0 + assumed * mean)
            slope = (float(deviation @ relative) + prior) / (float(deviation @ deviation) + 1.0)
            slope = max(0.0, slope)
            relative = relative - slope * deviation
            slopes.append(slope / unit)
            means.append(mean)
        share = min(0.9, slopes[0] * means[0] + slopes[1] * means[1])
        self._per_request, self._per_length = (slope / (1.0 - share) for slope in slopes)

    def _spread_of(self, alone: Floats) -> float:
        around = _around(alone)
        # One failure among answers is far off; in a row of them it is the present.
        usual = ~np.isfinite(around) | (around <= 0)
        excess = np.sort(np.where(usual, 1.0, alone / np.where(usual, 1.0, around)))
        rank = min(len(excess), math.ceil(self._percentile * (len(excess) + 1))) - 1
        return max(float(excess[rank]), WIDE if len(excess) < FEW else 1.0)


def _around(values: Floats) -> Floats:
    """The median of each value and its neighbours on both sides, float64 [values]."""
    near = min(NEIGHBOURS, len(values) - 1)
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(values, near, mode="reflect"), 2 * near + 1)
    return np.sort(windows, axis=1)[:, near]
