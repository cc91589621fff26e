"""Distances from the Pareto frontier, against their definition written down slowly."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ianvs_specdec.routing.evaluation.curve import Sides
from ianvs_specdec.routing.evaluation.pool import ORACLE, RANDOM
from ianvs_specdec.routing.evaluation.quality import Scored
from ianvs_specdec.routing.evaluation.results import GRID, evaluate, mean_distances


def slow_distance(levels: np.ndarray, own: np.ndarray, curves: list[np.ndarray]) -> float:
    points = [(x, float(y)) for curve in curves for x, y in zip(levels, curve, strict=True)]
    # Not beaten: no other point has more quality at no more cost, or the same quality for less.
    frontier = [
        (x, y) for x, y in points if not any((v > y and u <= x) or (v >= y and u < x) for u, v in points)
    ]  # fmt: skip
    nearest = [min(math.hypot(x - u, y - v) for u, v in frontier) for x, y in zip(levels, own, strict=True)]
    return float(np.mean(nearest))


@pytest.mark.parametrize("seed", range(20))
def test_distances_by_their_definition(seed: int) -> None:
    draw = np.random.default_rng(seed)
    levels = np.sort(draw.random(7))
    # Few different values, so that points are equally good.
    curves = [np.round(draw.random((3, 7)) * 4) / 4 for _ in range(3)]
    found = mean_distances(levels, curves)
    for own, far in zip(curves, found, strict=True):
        wanted = [slow_distance(levels, own[row], [curve[row] for curve in curves]) for row in range(3)]
        assert far == pytest.approx(wanted)


def test_the_best_router_is_its_own_frontier_and_the_oracle_is_on_none() -> None:
    draw = np.random.default_rng(0)
    sides = Sides((draw.random(300) < 0.6).astype(float), (draw.random(300) < 0.9).astype(float))
    knowing = Scored.at("knowing", sides.gain + 0.01 * draw.random(300), 0.5)
    guessing = Scored("guessing", draw.random(300))
    results = {one.name: one for one in evaluate(sides, [knowing, guessing], resamples=50, seed=0).results}
    far = {name: result.metrics.get("pareto_dist") for name, result in results.items()}
    assert far[ORACLE] is None
    curve = results["knowing"].curve
    assert curve is not None
    gained = (curve.quality / 100 - sides.edge.mean()) / sides.gain.mean()
    own = slow_distance(GRID, gained, [gained])
    found = far["knowing"]
    assert found is not None
    assert found.value == pytest.approx(own)
    assert found.low <= found.value <= found.high
    assert far["guessing"].value > 0.1 < far[RANDOM].value


def test_gains_and_gaps_by_their_definition() -> None:
    """Gain@Best and Gap@Oracle are relative to the better model, whichever it is, and to the better answers."""
    edge, cloud = np.array([1.0, 1.0, 1.0, 0.0, 0.0]), np.array([1.0, 0.0, 0.0, 1.0, 0.0])
    router = Scored.at("R", np.array([0.0, 0.0, 1.0, 1.0, 0.0]), 0.5)
    results = {one.name: one.metrics for one in evaluate(Sides(edge, cloud), [router], resamples=50, seed=0).results}
    # The edge alone has 3 of 5, the oracle 4, the router 3, the cloud 2.
    assert results["R"]["gain_best"].value == pytest.approx(0.0)
    assert results["always-cloud"]["gain_best"].value == pytest.approx(100 * (2 / 3 - 1))
    assert results["R"]["gap_oracle"].value == pytest.approx(25.0)
    assert results[ORACLE]["gain_best"].value == pytest.approx(100 / 3)
    assert results[ORACLE]["gap_oracle"].value == 0.0
    assert "pareto_dist" not in results["R"], "the cloud gains nothing, so that quality has no scale"
