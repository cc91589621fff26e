"""Logistic regression of probabilities: labels may lie between 0 and 1, and weights are drawn to a prior."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ianvs_specdec.routing.outcomes.recorded import Floats

EPSILON = 1e-6
NEVER = 1e-9
RIDGE = 1e-3
"""Draws the slope to 1 where the data say nothing, as with scores that separate the labels."""
FLATTEST = 1e-3


def sigmoid(x: Floats) -> Floats:
    return 0.5 * (1.0 + np.tanh(0.5 * x))


def logit(scores: Floats, nearest: float) -> Floats:
    """Scores are taken to be at least ``nearest`` away from 0 and 1, where a logit has no end."""
    clipped = np.clip(scores, nearest, 1 - nearest)
    return np.log(clipped / (1 - clipped))


def fit(x: Floats, labels: Floats, *, ridge: float, prior: float = 0.0, least: float = -np.inf) -> tuple[Floats, float]:
    """The slopes [columns] and the offset with the smallest cross-entropy of ``sigmoid(x @ slopes + offset)``.

    ``x``: [rows, columns]; ``labels``: [rows], 0 to 1; ``ridge``: how strongly each slope is drawn to ``prior``;
    ``least``: no slope is below it.
    """
    from scipy.optimize import minimize

    def loss(weights: Floats) -> tuple[float, Floats]:
        z, apart = x @ weights[:-1] + weights[-1], weights[:-1] - prior
        error = (sigmoid(z) - labels) / len(labels)
        value = np.mean(np.logaddexp(0.0, z) - labels * z) + 0.5 * ridge * apart @ apart
        return float(value), np.append(x.T @ error + ridge * apart, error.sum())

    start = np.append(np.full(x.shape[1], prior), 0.0)
    bounds = [(least, None)] * x.shape[1] + [(None, None)]
    limits = {"maxiter": 1000, "ftol": 1e-12, "gtol": 1e-8}
    weights = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options=limits).x
    return weights[:-1], float(weights[-1])


@dataclass(frozen=True)
class Calibration:
    """From a classifier's raw scores to probabilities, never quite 0 or 1: p = sigmoid(slope * logit(score) + offset).

    Source: J. Platt, Probabilistic outputs for support vector machines (1999), here on the logit of the raw score,
    which with slope 1 and offset 0 is the score itself. With the slope above 0 the order stays.
    """

    slope: float = 1.0
    offset: float = 0.0

    def __call__(self, scores: Floats) -> Floats:
        return np.clip(sigmoid(self.slope * logit(scores, EPSILON) + self.offset), NEVER, 1 - NEVER)


def fit_calibration(scores: Floats, labels: Floats) -> Calibration:
    """The calibration with the smallest cross-entropy. ``labels``: float64 [queries] from 0 to 1.

    Scores whose order is that of chance or worse leave the order as it is: the slope stays above 0.
    """
    (slope,), offset = fit(logit(scores, EPSILON)[:, None], labels, ridge=RIDGE, prior=1.0, least=FLATTEST)
    return Calibration(float(slope), offset)
