"""The threshold of a router, picked on queries whose outcomes are known and that it was not trained with."""

from __future__ import annotations

import numpy as np

from ianvs_specdec.routing.outcomes.recorded import Floats, Outcomes

ONE_SIDED_95 = 1.645
ALL = 0.0
"""At this threshold every query goes to the cloud."""


def keeping(scores: Floats, outcomes: Outcomes, keep: float) -> float:
    """The highest threshold, so the fewest queries in the cloud, at which the share ``keep`` of the cloud's quality is
    kept with 95 % confidence: the one-sided normal bound of quality - keep * cloud, over queries, is not below 0.
    """
    thresholds, edges = _candidates(scores)
    excess = outcomes.edge - keep * outcomes.cloud
    order = np.argsort(-scores, kind="stable")
    gain = outcomes.gain[order]
    # With the first n queries in the cloud the excess of each of them is its gain higher.
    change = gain * (gain + 2 * excess[order])
    count = len(scores)
    sums = np.concatenate([[0.0], np.cumsum(gain)])[edges] + excess.sum()
    squares = np.concatenate([[0.0], np.cumsum(change)])[edges] + (excess**2).sum()
    mean = sums / count
    error = np.sqrt(np.maximum(squares / count - mean**2, 0.0) / count)
    enough = np.flatnonzero(mean - ONE_SIDED_95 * error >= 0)
    return float(thresholds[enough[0]]) if len(enough) else ALL


def sharing(scores: Floats, share: float) -> float:
    """The threshold at which no more than ``share`` of the queries go to the cloud, and as many of it as can."""
    thresholds, edges = _candidates(scores)
    permitted = np.flatnonzero(edges <= share * len(scores) + 1e-9)
    return float(thresholds[permitted[-1]])


def _candidates(scores: Floats) -> tuple[Floats, np.ndarray]:
    """Thresholds from high to low, halfway between neighbouring scores, and how many queries reach each.

    Scores are below 1, as calibrated ones are.
    """
    values, counts = np.unique(scores, return_counts=True)
    between = np.concatenate([[ALL], (values[1:] + values[:-1]) / 2, [(values[-1] + 1.0) / 2]])
    return between[::-1], np.concatenate([[0], np.cumsum(counts[::-1])])
