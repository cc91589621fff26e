"""Thresholds against a search of all of them; calibration against what it was drawn from."""

from __future__ import annotations

import numpy as np
import pytest

from ianvs_specdec.common.types import Query
from ianvs_specdec.routing.learned.logistic import Calibration, fit_calibration
from ianvs_specdec.routing.learned.training import ALL, keeping, sharing
from ianvs_specdec.routing.outcomes.recorded import Outcomes


def drawn(seed, count=400, ties=False):
    generator = np.random.default_rng(seed)
    scores = generator.random(count)
    if ties:
        scores = np.round(scores, 1).clip(0.01, 0.99)
    edge = (generator.random(count) < 1 - 0.8 * scores).astype(float)
    cloud = (generator.random(count) < 0.9).astype(float)
    return scores, Outcomes(tuple(Query((str(i),)) for i in range(count)), edge, cloud)


@pytest.mark.parametrize("seed", range(6))
def test_keeping_sends_as_few_as_it_may(seed):
    scores, outcomes = drawn(seed, ties=seed % 2 == 1)

    def holds(threshold):
        answers = np.where(scores >= threshold, outcomes.cloud, outcomes.edge)
        excess = answers - 0.97 * outcomes.cloud
        return excess.mean() - 1.645 * excess.std() / np.sqrt(len(excess)) >= -1e-12

    threshold = keeping(scores, outcomes, 0.97)
    assert holds(threshold)
    higher = [value for value in np.unique(scores) if value > threshold][:-1]
    assert not any(holds(value) for value in higher[1:])


def test_exactly_the_share_that_is_to_be_kept_is_enough():
    scores = np.array([0.25, 0.5, 0.75, 0.875])
    alike = Outcomes(tuple(Query((str(i),)) for i in range(4)), np.full(4, 0.5), np.ones(4))
    assert keeping(scores, alike, 0.5) == 0.9375, "nothing need go to the cloud, whose threshold is the highest one"
    assert keeping(scores, alike, 0.75) == ALL < 0.25
    assert sharing(scores, 0.5) == 0.625
    assert sharing(scores, 0.49) == 0.8125


@pytest.mark.parametrize("share", [0.0, 0.2, 0.55, 1.0])
@pytest.mark.parametrize("ties", [False, True])
def test_sharing_uses_the_share_and_never_more(share, ties):
    scores, _ = drawn(1, ties=ties)
    sent = (scores >= sharing(scores, share)).mean()
    assert sent <= share + 1e-9
    assert sent >= share - (0.12 if ties else 0.003)


def test_calibration_finds_what_the_labels_were_drawn_with():
    generator = np.random.default_rng(0)
    raw = generator.random(20_000)
    true = Calibration(slope=2.0, offset=-1.0)
    labels = (generator.random(len(raw)) < true(raw)).astype(float)
    found = fit_calibration(raw, labels)
    assert found.slope == pytest.approx(2.0, abs=0.1)
    assert found.offset == pytest.approx(-1.0, abs=0.1)


def test_calibration_keeps_the_order_and_stays_finite():
    labels = np.array([0.0] * 50 + [1.0] * 50)
    for scores in (np.linspace(0, 1, 100), np.linspace(1, 0, 100), labels, np.full(100, 0.3)):
        calibration = fit_calibration(scores, labels)
        values = calibration(scores)
        assert np.isfinite(values).all()
        assert calibration.slope > 0
        assert values.min() > 0
        assert values.max() < 1
