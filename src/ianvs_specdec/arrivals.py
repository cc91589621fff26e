"""When requests come, where users do not wait for each other: the pauses between them."""

from __future__ import annotations

import random

POISSON, BURSTY, CONSTANT = "poisson", "bursty", "constant"
PATTERNS = (POISSON, BURSTY, CONSTANT)
BURST_SHAPE = 0.25
"""Shape of the gamma distribution of pauses where arrivals are bursty: their standard deviation is twice their mean,
against once for Poisson arrivals (shape 1). Measured services lie between."""


def pause(pattern: str, rate: float, chance: random.Random) -> float:
    """Seconds to the next request of a ``pattern`` with ``rate`` requests a second on average."""
    if pattern == CONSTANT:
        return 1 / rate
    shape = BURST_SHAPE if pattern == BURSTY else 1.0
    return chance.gammavariate(shape, 1 / (shape * rate))
