"""Exploration: more where little is known or something has changed, less where it is known."""

from __future__ import annotations

import numpy as np
import pytest

from ianvs_specdec.routing.lifelong.lessons import BOOST, FEW, Exploration


def taught(residuals: list[float], group: str = "g", side: int = 0) -> Exploration:
    exploration = Exploration(0.05)
    for residual in residuals:
        exploration.observe(group, side, residual)
    return exploration


def test_a_model_is_explored_more_where_little_is_known_of_it() -> None:
    boosted = pytest.approx(0.05 * BOOST)
    assert taught([]).of("g", 0) == taught([0.1] * (FEW - 1)).of("g", 0) == boosted
    known = taught([0.1] * FEW)
    assert known.of("g", 0) == 0.05
    assert known.of("g", 1) == known.of("another", 0) == boosted


@pytest.mark.parametrize("side", [0, 1])
def test_a_group_whose_answers_have_changed_is_explored_more_until_that_is_known(side: int) -> None:
    noise = np.random.default_rng(0).normal(0, 0.1, 400)
    before, after, later = noise[:100] + 0.3, noise[100:120] - 0.4, noise[120:] - 0.4
    assert taught(before.tolist(), side=side).of("g", side) == 0.05
    assert taught([*before, *after], side=side).of("g", side) > 0.05
    assert taught([*before, *after, *later], side=side).of("g", side) == 0.05


def test_right_and_wrong_at_random_are_no_change() -> None:
    answers = np.random.default_rng(1).random(2000) < 0.7
    exploration, boosted = Exploration(0.05), 0
    for right in answers:
        exploration.observe("", 0, float(right) - 0.7)
        boosted += exploration.of("", 0) > 0.05
    assert boosted < 0.1 * len(answers)
