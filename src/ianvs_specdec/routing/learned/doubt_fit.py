"""Fitting what signals of doubt say: the probability that the cloud answers better, from what the edge's answers were
like and what became of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.routing.learned import logistic
from ianvs_specdec.routing.learned.doubt import EPSILON
from ianvs_specdec.routing.outcomes.recorded import Floats

RIDGE = 1e-2
"""Draws slopes to 0 where the data say nothing."""


def fit(doubts: Mapping[str, Floats], labels: Floats) -> tuple[dict[str, float], float]:
    """Slopes by signal, and the offset, of the logistic regression of ``labels`` (float64 [queries], 0 to 1) on the
    logits of ``doubts`` (float64 [queries] each, 0 to 1) that has the smallest cross-entropy without a slope below 0: a
    signal that would be taken for the contrary of what it says is left out, with slope 0.

    Raises UserError if the labels are all alike, or no signal says anything.
    """
    if labels.min() == labels.max():
        raise UserError(f"nothing to learn: all {len(labels)} queries have the same label, {labels[0]:g}")
    x = np.stack([logits(values) for values in doubts.values()], axis=1)
    slopes, offset = logistic.fit(x, labels, ridge=RIDGE, least=0.0)
    if slopes.max() <= 0:
        raise UserError(f"nothing to learn: none of {', '.join(doubts)} is higher where the cloud answers better")
    return dict(zip(doubts, slopes.tolist(), strict=True)), offset


def logits(doubts: Floats) -> Floats:
    """As ``doubt.logit``, [queries]."""
    return logistic.logit(doubts, EPSILON)


def scores(doubts: Mapping[str, Floats], slopes: Mapping[str, float], offset: float) -> Floats:
    """As ``doubt.Doubt.score``, [queries]."""
    return logistic.sigmoid(offset + np.sum([slope * logits(doubts[name]) for name, slope in slopes.items()], axis=0))


def cross_fitted(doubts: Mapping[str, Floats], labels: Floats, folds: Sequence[np.ndarray]) -> Floats:
    """Scores [queries], those of each of ``folds`` (row numbers) from a fit to the others."""
    found = np.empty(len(labels))
    for held in folds:
        rest = np.setdiff1d(np.arange(len(labels)), held)
        fitted = fit({name: values[rest] for name, values in doubts.items()}, labels[rest])
        found[held] = scores({name: values[held] for name, values in doubts.items()}, *fitted)
    return found
