"""Calibration: from a classifier's raw scores to probabilities, by Platt scaling on scores it was not trained with.

Source: J. Platt, Probabilistic outputs for support vector machines (1999), here on the logit of the raw score, which
with slope 1 and offset 0 is the score itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ianvs_specdec.outcomes.recorded import Floats

EPSILON = 1e-6
NEVER = 1e-9
RIDGE = 1e-3
"""Draws the slope to 1 and the offset to 0 where the data say nothing, as with scores that separate the labels."""
STEPS = 50


@dataclass(frozen=True)
class Calibration:
    """p = sigmoid(slope * logit(score) + offset), never quite 0 or 1. With the slope above 0 the order stays."""

    slope: float = 1.0
    offset: float = 0.0

    def __call__(self, scores: Floats) -> Floats:
        return np.clip(_sigmoid(self.slope * _logit(scores) + self.offset), NEVER, 1 - NEVER)


def fit_calibration(scores: Floats, labels: Floats) -> Calibration:
    """The calibration with the smallest cross-entropy. ``labels``: float64 [queries] from 0 to 1.

    Scores whose order is that of chance or worse leave the order as it is: the slope stays above 0.
    """
    x = np.stack([_logit(scores), np.ones(len(scores))], axis=1)
    prior = np.array([1.0, 0.0])
    weights = prior.copy()
    for _ in range(STEPS):
        p = _sigmoid(x @ weights)
        gradient = x.T @ (p - labels) / len(labels) + RIDGE * (weights - prior)
        hessian = (x * (p * (1 - p))[:, None]).T @ x / len(labels) + RIDGE * np.eye(2)
        step = np.linalg.solve(hessian, gradient)
        # Newton's step is long where the curve is flat.
        weights = weights - step * min(1.0, 4.0 / max(float(np.abs(step).max()), EPSILON))
        if np.abs(step).max() < 1e-9:
            break
    return Calibration(slope=max(float(weights[0]), 1e-3), offset=float(weights[1]))


def _logit(scores: Floats) -> Floats:
    clipped = np.clip(scores, EPSILON, 1 - EPSILON)
    return np.log(clipped / (1 - clipped))


def _sigmoid(x: Floats) -> Floats:
    return 0.5 * (1.0 + np.tanh(0.5 * x))
