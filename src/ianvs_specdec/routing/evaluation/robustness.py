"""Robustness of routers to rewordings that keep the meaning of a question.

``flips``: share of the reworded questions (%) that go to another model than the original; RouterArena (arXiv
2510.00202) calls the rest robustness, with other rewordings. ``change``: mean absolute change of the score. Both for
each kind of rewording, such as ``flips:case``, and for ``all``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ianvs_specdec.common.types import Query
from ianvs_specdec.routing.evaluation.bootstrap import Estimate, draws, estimate
from ianvs_specdec.routing.outcomes.recorded import Floats

MEASURES = ("flips", "change")


def robustness(
    scores: Floats,
    reworded: Mapping[str, Mapping[int, Query]],
    score: Callable[[Sequence[Query]], Floats],
    choose: Callable[[Floats], NDArray[np.intp]],
    *,
    resamples: int,
    seed: int,
) -> dict[str, Estimate]:
    """Metrics by name, without kinds that reword no query. Intervals: bootstrap over the original queries.

    ``scores``: of the original queries, [queries]; ``choose``: scores -> the model of each query.
    """
    table = np.zeros((len(scores), 1 + len(MEASURES), len(reworded) + 1))
    for position, queries in enumerate(reworded.values()):
        if queries:
            rows, now = list(queries), score(list(queries.values()))
            flips, change = choose(now) != choose(scores[rows]), np.abs(now - scores[rows])
            table[rows, :, position] = np.stack([np.ones(len(rows)), 100.0 * flips, change], axis=1)
    table[:, :, -1] = table.sum(axis=2)
    weights = itertools.chain([np.ones((1, len(scores)))], draws(len(scores), resamples, seed))
    count, *sums = np.moveaxis(np.concatenate([np.tensordot(one, table, axes=1) for one in weights]), 1, 0)
    found = {}
    for measure, values in zip(MEASURES, sums, strict=True):
        means = np.divide(values, count, out=np.full(values.shape, np.nan), where=count > 0)
        for kind, (value, *drawn) in zip((*reworded, "all"), means.T, strict=True):
            if np.isfinite(value):
                found[f"{measure}:{kind}"] = estimate(float(value), np.array(drawn))
    return found
