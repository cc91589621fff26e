"""95 % bootstrap intervals over queries: half the distance between the 2.5th and the 97.5th percentile.

Queries are drawn as for routers (``routing.evaluation.bootstrap``), with numerator and denominator in pairs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ianvs_specdec.report.metrics.columns import MEANS, RATIOS, sums_of
from ianvs_specdec.report.metrics.table import NAN, Column, Table
from ianvs_specdec.routing.evaluation.bootstrap import RESAMPLES, draws

_BLOCK = 100
"""Resamples per matrix product."""


@functools.lru_cache(maxsize=2)
def _counts(queries: int) -> NDArray[np.uint8]:
    """How often each query is drawn: ``[RESAMPLES, queries]``, the same for all columns."""
    counts = np.empty((RESAMPLES, queries), dtype=np.uint8)
    start = 0
    for block in draws(queries):
        counts[start : start + len(block)] = block
        start += len(block)
    return counts


def half_width(numerator: Column, denominator: Column) -> float:
    """Half width of the interval of sum(numerator) / sum(denominator), of the queries that have both; NaN with fewer
    than two such queries or if the ratio is undefined."""
    both = ~np.isnan(numerator + denominator)
    if both.sum() < 2 or denominator[both].sum() <= 0:
        return NAN
    sides = np.stack([numerator[both], denominator[both]], axis=1)
    counts = _counts(len(sides))
    sums = np.concatenate([counts[i : i + _BLOCK].astype(np.float64) @ sides for i in range(0, RESAMPLES, _BLOCK)])
    defined = sums[sums[:, 1] > 0]
    low, high = np.percentile(defined[:, 0] / defined[:, 1], [2.5, 97.5])
    return float(high - low) / 2


def all_intervals() -> dict[str, Callable[[Table], float]]:
    """The columns ``<metric> CI95``, in the unit of the metric."""
    return {f"{name} CI95": _of(name) for name in (*RATIOS, *MEANS)}


def _of(name: str) -> Callable[[Table], float]:
    return lambda table: half_width(*sums_of(name, table))
