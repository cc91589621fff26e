"""Thresholds at their edges, and calibration of scores that divide the labels, or do not."""

from __future__ import annotations

import numpy as np

from ianvs_specdec.common.types import Query
from ianvs_specdec.routing.learned.logistic import fit_calibration
from ianvs_specdec.routing.learned.training import ALL, keeping, sharing
from ianvs_specdec.routing.outcomes.recorded import Outcomes


def test_exactly_the_share_that_is_to_be_kept_is_enough():
    scores = np.array([0.25, 0.5, 0.75, 0.875])
    alike = Outcomes(tuple(Query((str(i),)) for i in range(4)), np.full(4, 0.5), np.ones(4))
    assert keeping(scores, alike, 0.5) == 0.9375, "nothing need go to the cloud, whose threshold is the highest one"
    assert keeping(scores, alike, 0.75) == ALL < 0.25
    assert sharing(scores, 0.5) == 0.625
    assert sharing(scores, 0.49) == 0.8125


def test_calibration_keeps_the_order_and_stays_finite():
    labels = np.array([0.0] * 50 + [1.0] * 50)
    for scores in (np.linspace(0, 1, 100), np.linspace(1, 0, 100), labels, np.full(100, 0.3)):
        calibration = fit_calibration(scores, labels)
        values = calibration(scores)
        assert calibration.slope > 0
        assert 0 < values.min() <= values.max() < 1
