"""Percentile bootstrap over queries: 95 % intervals and p-values.

Draws are not stratified by group or outcome. All routers are measured on the same draws, so that differences are
paired.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ianvs_specdec.routing.outcomes.recorded import Floats

RESAMPLES = 1000
SEED = 0
LEVEL = 0.95
DEFINED = 0.95
"""Minimum share of the draws with a value for an interval."""
_CELLS = 50_000
"""Draws times queries of a block, which fits into the CPU cache."""


def draws(queries: int, resamples: int = RESAMPLES, seed: int = SEED) -> Iterator[Floats]:
    """Counts of each query: blocks of float64 [draws, queries], ``resamples`` draws in total."""
    generator = np.random.default_rng(seed)
    block = max(1, _CELLS // queries)
    for start in range(0, resamples, block):
        size = min(block, resamples - start)
        drawn = generator.integers(queries, size=(size, queries), dtype=np.int32)
        drawn += np.arange(size, dtype=np.int32)[:, None] * np.int32(queries)
        counts = np.bincount(drawn.ravel(), minlength=size * queries)
        yield counts.reshape(size, queries).astype(np.float64)


@dataclass(frozen=True)
class Estimate:
    """A value and its 95 % interval, NaN if undefined."""

    value: float
    low: float
    high: float


def estimate(value: float, drawn: Floats) -> Estimate:
    """``drawn``: the value in each draw, NaN if undefined."""
    (low,), (high,) = intervals(drawn[:, None])
    return Estimate(value, *((float(low), float(high)) if np.isfinite(value) else (np.nan, np.nan)))


def intervals(drawn: Floats) -> tuple[Floats, Floats]:
    """Lower and upper ends of the intervals of several values: [draws, values] -> [values], [values]."""
    undefined = np.isnan(drawn)
    few = undefined.mean(axis=0) > 1 - DEFINED
    if undefined.any():
        # nanpercentile warns about columns without values.
        low, high = np.nanpercentile(np.where(few, 0.0, drawn), [50 - 50 * LEVEL, 50 + 50 * LEVEL], axis=0)
    else:
        low, high = np.percentile(drawn, [50 - 50 * LEVEL, 50 + 50 * LEVEL], axis=0)
    return np.where(few, np.nan, low), np.where(few, np.nan, high)


def p_values(differences: Floats) -> Floats:
    """Two-sided p-values of no difference: [draws, values] -> [values], at least 2 / (draws + 1)."""
    defined = ~np.isnan(differences)
    count = defined.sum(axis=0)
    below, above = ((1.0 + (defined & side).sum(axis=0)) for side in (differences <= 0, differences >= 0))
    p = np.minimum(1.0, 2.0 * np.minimum(below, above) / (count + 1.0))
    return np.where(count < DEFINED * len(differences), np.nan, p)
