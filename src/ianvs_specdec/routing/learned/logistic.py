"""Logistic regression of probabilities: labels may lie between 0 and 1, and weights are drawn to a prior."""

from __future__ import annotations

import numpy as np

from ianvs_specdec.routing.outcomes.recorded import Floats

STEPS = 100
CONVERGED = 1e-9
STEADY = 1e-9
"""On the Hessian's diagonal: where all labels are foreseen it vanishes."""


def sigmoid(x: Floats) -> Floats:
    return 0.5 * (1.0 + np.tanh(0.5 * x))


def logit(scores: Floats, nearest: float) -> Floats:
    """Scores are taken to be at least ``nearest`` away from 0 and 1, where a logit has no end."""
    clipped = np.clip(scores, nearest, 1 - nearest)
    return np.log(clipped / (1 - clipped))


def fit(x: Floats, labels: Floats, ridge: Floats, prior: Floats) -> Floats:
    """The weights [columns] with the smallest cross-entropy of ``sigmoid(x @ weights)``, by Newton's method.

    ``x``: [rows, columns]; ``labels``: [rows], 0 to 1; ``ridge`` [columns]: how strongly each weight is drawn to its
    ``prior`` [columns].
    """

    def loss(weights: Floats) -> float:
        z = x @ weights
        return float(np.mean(np.logaddexp(0.0, z) - labels * z) + 0.5 * np.sum(ridge * (weights - prior) ** 2))

    weights = prior.copy()
    for _ in range(STEPS):
        p = sigmoid(x @ weights)
        gradient = x.T @ (p - labels) / len(labels) + ridge * (weights - prior)
        hessian = (x * (p * (1 - p))[:, None]).T @ x / len(labels) + np.diag(ridge + STEADY)
        step = np.linalg.solve(hessian, gradient)
        # Where the curve is flat, a whole step leads beyond the valley, and the next one back again.
        while loss(weights - step) > loss(weights) and np.abs(step).max() > CONVERGED:
            step = step / 2
        weights = weights - step
        if np.abs(step).max() < CONVERGED:
            break
    return weights
