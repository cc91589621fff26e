"""Logistic regression of probabilities: labels may lie between 0 and 1, and weights are drawn to a prior."""

from __future__ import annotations

import numpy as np

from ianvs_specdec.routing.outcomes.recorded import Floats


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
