"""Logistic regression with soft labels, a Gaussian prior and bounds, none of which scikit-learn's has."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ianvs_specdec.routing.outcomes.recorded import Floats

EPSILON = 1e-6
NEVER = 1e-9
RIDGE = 1e-3
"""L2 regularization of the slope towards 1, for scores that separate the labels."""
FLATTEST = 1e-3


def sigmoid(x: Floats) -> Floats:
    return 0.5 * (1.0 + np.tanh(0.5 * x))


def logit(scores: Floats, nearest: float) -> Floats:
    """The logits of scores, which are clipped to a distance of ``nearest`` from 0 and 1."""
    clipped = np.clip(scores, nearest, 1 - nearest)
    return np.log(clipped / (1 - clipped))


def fit(x: Floats, labels: Floats, *, ridge: float, prior: float = 0.0, least: float = -np.inf) -> tuple[Floats, float]:
    """The slopes [columns] and the offset that minimize the cross-entropy of ``sigmoid(x @ slopes + offset)``.

    ``x``: [rows, columns]; ``labels``: [rows], 0 to 1; ``ridge``: L2 regularization of the slopes towards ``prior``;
    ``least``: lower bound of the slopes.
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
    """Platt scaling of a classifier's scores: p = sigmoid(slope * logit(score) + offset), within (0, 1).

    Source: J. Platt, Probabilistic outputs for support vector machines (1999), here on the logit of the score, so that
    slope 1 and offset 0 are the identity. A positive slope keeps the order.
    """

    slope: float = 1.0
    offset: float = 0.0

    def __call__(self, scores: Floats) -> Floats:
        return np.clip(sigmoid(self.slope * logit(scores, EPSILON) + self.offset), NEVER, 1 - NEVER)


def fit_calibration(scores: Floats, labels: Floats) -> Calibration:
    """The calibration with the smallest cross-entropy, and a positive slope. ``labels``: float64 [queries], 0 to 1."""
    (slope,), offset = fit(logit(scores, EPSILON)[:, None], labels, ridge=RIDGE, prior=1.0, least=FLATTEST)
    return Calibration(float(slope), offset)
