"""Intervals, paired comparisons and tables of an evaluation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ianvs_specdec.routing.evaluation.bootstrap import intervals, p_values
from ianvs_specdec.routing.evaluation.metrics import RouterScores
from ianvs_specdec.routing.evaluation.pool import BASELINES, ORACLE, RANDOM
from ianvs_specdec.routing.evaluation.results import GRID, LEVELS, evaluate, mean_distances
from ianvs_specdec.routing.outcomes.recorded import Sides


def case(count: int, seed: int = 0, *, priced: bool = False) -> Sides:
    draw = np.random.default_rng(seed)
    costs = (0.1 * draw.random(count), 0.5 + draw.random(count)) if priced else (None, None)
    return Sides((draw.random(count) < 0.6).astype(float), (draw.random(count) < 0.85).astype(float), *costs)


def knowing(sides: Sides, noise: float, seed: int = 1) -> np.ndarray:
    return 0.5 + 0.25 * sides.gain + noise * np.random.default_rng(seed).normal(size=len(sides))


def metrics(evaluation, name):
    return next(result.metrics for result in evaluation.results if result.name == name)


@pytest.mark.parametrize(
    ("parts", "least", "most"), [(30, 24, 30), pytest.param(100, 88, 99, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_intervals_hold_what_they_promise(parts: int, least: int, most: int) -> None:
    """Of a router of which the true APGR is known, nearly all of 95 % intervals of samples hold it."""
    everything = case(600 * parts, seed=9)
    scores = knowing(everything, 0.4)
    truth = metrics(evaluate(everything, [RouterScores("R", scores)], resamples=2, seed=0), "R")
    held = dict.fromkeys(("apgr", "auroc", "quality"), 0)
    for part in range(parts):
        rows = slice(300 * part, 300 * (part + 1))
        sides = Sides(everything.edge[rows], everything.cloud[rows])
        found = metrics(
            evaluate(sides, [RouterScores.at_threshold("R", scores[rows], 0.6)], resamples=200, seed=part), "R"
        )
        true_quality = 100 * np.where(scores >= 0.6, everything.cloud, everything.edge).mean()
        for name in held:
            value = true_quality if name == "quality" else truth[name].value
            held[name] += found[name].low <= value <= found[name].high
    assert all(least <= count <= most for count in held.values()), held


def test_undefined_draws() -> None:
    drawn = np.stack([np.full(100, np.nan), np.arange(100.0), np.where(np.arange(100) < 3, np.nan, 1.0)], axis=1)
    low, high = intervals(drawn)
    assert low == pytest.approx([np.nan, 2.475, 1.0], nan_ok=True)
    assert high == pytest.approx([np.nan, 96.525, 1.0], nan_ok=True)
    many = np.where(np.arange(100) < 10, np.nan, 1.0)[:, None]
    assert all(np.isnan(found[0]) for found in (*intervals(many), p_values(many)))


def test_p_values() -> None:
    same, more, either = np.zeros(999), np.ones(999), np.tile([-1.0, 1.0, 1.0], 333)
    assert p_values(np.stack([same, more, either], axis=1)) == pytest.approx([1.0, 2 / 1000, 2 * 334 / 1000])


def test_baselines_have_their_known_values() -> None:
    sides = case(500, priced=True)
    evaluation = evaluate(sides, [], resamples=100, seed=0)
    assert [result.name for result in evaluation.results] == list(BASELINES)
    edge, cloud, random, oracle, by_cost = (result.metrics for result in evaluation.results)
    assert (edge["share"].value, edge["pgr"].value, cloud["share"].value, cloud["pgr"].value) == (0, 0, 100, 1)
    assert edge["quality"].value == pytest.approx(100 * sides.edge.mean())
    assert cloud["cost"].value == pytest.approx(1000 * sides.cloud_cost.mean())
    assert random["quality"].value == pytest.approx((edge["quality"].value + cloud["quality"].value) / 2)
    for name, value in (("apgr", 0.5), ("cpt50", 50), ("cpt80", 80), ("auroc", 0.5), ("apgr_money", 0.5)):
        found = random[name]
        assert (found.value, found.low, found.high) == pytest.approx((value, value, value))
    assert oracle["quality"].value == pytest.approx(100 * np.maximum(sides.edge, sides.cloud).mean())
    assert "pareto_dist" in random.keys() - oracle.keys(), "who knows the answers is on no frontier"
    assert by_cost["apgr_money"].value > oracle["apgr_money"].value
    assert oracle["apgr"].value == pytest.approx(by_cost["apgr"].value)


def test_a_routers_threshold_lies_on_its_curve() -> None:
    sides = case(200, priced=True)
    scores = knowing(sides, 0.3)
    result = evaluate(
        sides, [RouterScores.at_threshold("R", scores, float(np.median(scores)))], resamples=10, seed=0
    ).results[-1]
    assert result.metrics["share"].value == 50.0
    place = int(np.flatnonzero(GRID == 0.5)[0])
    assert result.curve.quality[place] == pytest.approx(result.metrics["quality"].value)
    assert result.curve.cost[place] == pytest.approx(result.metrics["cost"].value)
    assert result.curve.thresholds[place] == np.sort(scores)[100]
    assert np.isnan(result.curve.thresholds[0])


def test_pairs_are_compared_on_the_same_draws() -> None:
    sides = case(400)
    good, twin, bad = knowing(sides, 0.1), knowing(sides, 0.1) * 3 - 7, knowing(sides, 5.0)
    routers = [RouterScores("good", good), RouterScores("twin", twin), RouterScores("bad", bad)]
    evaluation = evaluate(sides, routers, resamples=400, seed=0)
    by_pair = {(item.first, item.second): item for item in evaluation.differences if item.metric == "apgr"}
    same = by_pair["good", "twin"]
    assert (same.value, same.low, same.high, same.p) == (0, 0, 0, 1)
    ahead = by_pair["good", RANDOM]
    assert ahead.value == pytest.approx(metrics(evaluation, "good")["apgr"].value - 0.5)
    assert ahead.low > 0
    assert by_pair["bad", RANDOM].low < 0 < by_pair["bad", RANDOM].high
    assert evaluation.ahead_of_random("good") == len(LEVELS)
    assert evaluation.ahead_of_random("bad") < 5


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


def test_distances_are_from_the_frontier_of_all_routers_but_the_oracle() -> None:
    sides = case(300)
    routers = [RouterScores("good", knowing(sides, 0.1)), RouterScores("bad", knowing(sides, 5.0))]
    results = {one.name: one for one in evaluate(sides, routers, resamples=10, seed=0).results}
    curves = {
        name: (results[name].curve.quality / 100 - sides.edge.mean()) / sides.gain.mean()
        for name in (RANDOM, "good", "bad")
    }
    for name, own in curves.items():
        wanted = slow_distance(GRID, own, list(curves.values()))
        assert results[name].metrics["pareto_dist"].value == pytest.approx(wanted)


def test_gains_and_gaps_by_their_definition() -> None:
    """Gain@Best and Gap@Oracle are relative to the better model, whichever it is, and to the better answers."""
    edge, cloud = np.array([1.0, 1.0, 1.0, 0.0, 0.0]), np.array([1.0, 0.0, 0.0, 1.0, 0.0])
    router = RouterScores.at_threshold("R", np.array([0.0, 0.0, 1.0, 1.0, 0.0]), 0.5)
    results = {one.name: one.metrics for one in evaluate(Sides(edge, cloud), [router], resamples=50, seed=0).results}
    # The edge alone has 3 of 5, the oracle 4, the router 3, the cloud 2.
    assert results["R"]["gain_best"].value == pytest.approx(0.0)
    assert results["always-cloud"]["gain_best"].value == pytest.approx(100 * (2 / 3 - 1))
    assert results["R"]["gap_oracle"].value == pytest.approx(25.0)
    assert results[ORACLE]["gain_best"].value == pytest.approx(100 / 3)
    assert results[ORACLE]["gap_oracle"].value == 0.0
    assert "pareto_dist" not in results["R"], "the cloud gains nothing, so that quality has no scale"
