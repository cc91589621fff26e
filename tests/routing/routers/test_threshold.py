"""A score equal to the threshold goes to the cloud."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ianvs_specdec.routing.routers.base import Router
from ianvs_specdec.routing.routers.baselines import RandomRouter
from ianvs_specdec.routing.routers.learned import LearnedRouter
from ianvs_specdec.routing.routers.lifelong import LifelongRouter
from ianvs_specdec.routing.routers.privacy import PrivacyRouter
from tests.routing.routers.lifelong_stream import row

ROUTERS: dict[str, Callable[[str, float], Router]] = {
    "random": lambda path, threshold: RandomRouter(1.0 - threshold),
    "learned": LearnedRouter,
    "lifelong": lambda path, threshold: LifelongRouter(path, threshold, explore=0.0),
    "constrained": lambda path, threshold: PrivacyRouter(LearnedRouter(path, threshold)),
}


@pytest.mark.parametrize("name", ROUTERS)
def test_a_score_equal_to_the_threshold_goes_to_the_cloud(name: str, path: str) -> None:
    build = ROUTERS[name]
    score = build(path, 0.5).score_row(row(1))
    assert 0 < score < 1
    # The resolution of 1 - ratio.
    step = 2.0**-52
    decided = [build(path, threshold)(row(1)) for threshold in (score, score + step, score - step)]
    assert decided == [True, False, True]
