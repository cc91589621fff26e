"""ParetoDist: how far a router's configurations are from the best that any of the compared routers attains.

LLMRouterBench (arXiv 2601.07206) names it the average distance to the Pareto frontier. Here a configuration is one
point of a router's curve. Both axes are normalised by the two ends of the curve: cost is 0 for the cheaper model alone
and 1 for the dearer one alone, and quality likewise. The frontier holds the points of all routers that no other point
beats with more quality at no more cost. The distance is the Euclidean one to the nearest point of the frontier.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ianvs_specdec.routing.evaluation.curve import ROUNDING
from ianvs_specdec.routing.outcomes.recorded import Floats


def mean_distances(levels: Floats, curves: Sequence[Floats]) -> list[Floats]:
    """Of each curve, the mean distance of its points from the frontier of all, [draws]; NaN where it is not defined.

    ``levels``: rising costs, [levels]; ``curves``: the quality at each, [draws, levels] with NaN in draws without any.
    """
    best = np.maximum.reduce(list(curves))
    cheaper = np.concatenate([np.full((len(best), 1), -np.inf), np.maximum.accumulate(best, axis=1)[:, :-1]], axis=1)
    # A point of infinite quality is nearest to none.
    frontier = np.where((best > cheaper + ROUNDING) | np.isnan(best), best, np.inf)
    found = []
    for curve in curves:
        nearest = np.full(curve.shape, np.inf)
        for place, level in enumerate(levels):
            squared = (levels - level) ** 2 + (curve - frontier[:, place : place + 1]) ** 2
            np.minimum(nearest, squared, out=nearest)
        found.append(np.sqrt(nearest).mean(axis=1))
    return found


def frontier_of(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Of points [points], those that no other one beats with more ``y`` at no more ``x``, by rising ``x``."""
    order = np.lexsort((-y, x))
    x, y = x[order], y[order]
    kept = y > np.concatenate([[-np.inf], np.maximum.accumulate(y)[:-1]]) + ROUNDING
    return x[kept], y[kept]
