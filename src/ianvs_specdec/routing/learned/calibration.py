"""Calibration: from a classifier's raw scores to probabilities, by Platt scaling on scores it was not trained with.

Source: J. Platt, Probabilistic outputs for support vector machines (1999), here on the logit of the raw score, which
with slope 1 and offset 0 is the score itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ianvs_specdec.routing.learned.logistic import fit, logit, sigmoid
from ianvs_specdec.routing.outcomes.recorded import Floats

EPSILON = 1e-6
NEVER = 1e-9
RIDGE = 1e-3
"""Draws the slope to 1 where the data say nothing, as with scores that separate the labels."""
FLATTEST = 1e-3


@dataclass(frozen=True)
class Calibration:
    """p = sigmoid(slope * logit(score) + offset), never quite 0 or 1. With the slope above 0 the order stays."""

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
