"""How alike two queries are by what a probe sees of them: hidden states, standardised, as vectors of length 1.

The kernel is the Gaussian one of their distance. 0.5 is what it makes of a cosine of ``HALF``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ianvs_specdec.routing.outcomes.recorded import Floats

HALF = 0.85
"""Chosen on recorded drifts of the embedded world (nine seeds), by states of the last token alone:
0.5 regains as much, 0.7 and 0.93 less."""
RATE = math.log(2.0) / (1.0 - HALF)


def kernel(cosines: Floats) -> Floats:
    """1 for the same state, 0.5 for a cosine of ``HALF``."""
    return np.exp(RATE * (cosines - 1.0))


@dataclass(frozen=True, eq=False)
class Seen:
    """Some states, float64 [states, columns], and what each of them counts, float64 [states]."""

    states: Floats
    counts: Floats

    def __call__(self, state: Floats) -> float:
        return float(self.counts @ kernel(self.states @ state))


class States:
    """Those of the observations that a learner keeps, by their places, and how alike they are. An observation without
    a state is like no other."""

    def __init__(self, capacity: int) -> None:
        self._rows: Floats = np.zeros((capacity, 0))
        self._alike: Floats = np.zeros((capacity, capacity))
        self._has: NDArray[np.bool_] = np.zeros(capacity, dtype=bool)

    def alike(self, state: Floats | None, size: int) -> Floats:
        """float64 [size], to the first ``size`` of them."""
        if state is None or not self._rows.shape[1]:
            return np.zeros(size)
        return np.where(self._has[:size], kernel(self._rows[:size] @ state), 0.0)

    def put(self, place: int, state: Floats | None, alike: Floats) -> None:
        """Keep ``state`` at ``place``, in place of what was there; ``alike``: to those that are kept."""
        if state is not None and not self._rows.shape[1]:
            self._rows = np.zeros((len(self._rows), len(state)))
        self._rows[place] = 0.0 if state is None else state
        self._has[place] = state is not None
        self._alike[place, : len(alike)] = self._alike[: len(alike), place] = alike
        self._alike[place, place] = float(state is not None)

    def kernel(self, size: int) -> Floats:
        """float64 [size, size]"""
        return self._alike[:size, :size]

    def rows(self, size: int) -> Floats:
        """float64 [size, columns], of zeros for one without a state; no columns where none has one."""
        return self._rows[:size]

    def seen(self, counts: Floats) -> Seen | None:
        """``counts``: of the first ones, float64 [states]; None where none has a state."""
        if not self._rows.shape[1]:
            return None
        chosen = np.flatnonzero(self._has[: len(counts)])
        return Seen(self._rows[chosen].copy(), counts[chosen])
