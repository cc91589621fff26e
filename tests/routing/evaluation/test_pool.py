"""Routers that choose from a pool of models: two of them as an edge and a cloud, more against slow definitions."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ianvs_specdec.common.types import Query
from ianvs_specdec.routing.evaluation.inputs import EvaluationInputs, undefined_metrics
from ianvs_specdec.routing.evaluation.metrics import RouterScores
from ianvs_specdec.routing.evaluation.pool import ORACLE_MONEY, RANDOM, RoutingPolicy, pool_policy
from ianvs_specdec.routing.evaluation.results import Result, evaluate_policies
from ianvs_specdec.routing.outcomes.recorded import Pool

NAMES = ("small", "middle", "large")


def pool_of(quality: np.ndarray, cost: np.ndarray) -> Pool:
    queries = tuple(Query((f"question {index}",), id=str(index)) for index in range(len(quality)))
    return Pool(queries, quality, cost, NAMES[: quality.shape[1]] if quality.shape[1] > 2 else ("edge", "cloud"))


def drawn(count: int = 200, models: int = 3, seed: int = 0) -> Pool:
    draw = np.random.default_rng(seed)
    quality = (draw.random((count, models)) < np.linspace(0.5, 0.9, models)).astype(float)
    return pool_of(quality, 4.0 ** np.arange(models) * (0.5 + draw.random((count, models))))


def results_of(pool: Pool, *policies: RoutingPolicy) -> dict[str, Result]:
    return {result.name: result for result in evaluate_policies(pool, policies, resamples=60, seed=0).results}


def test_models_alone_random_and_the_oracle() -> None:
    pool = drawn()
    found = results_of(pool)
    assert list(found) == ["always-small", "always-middle", "always-large", RANDOM, ORACLE_MONEY]
    for place, name in enumerate(NAMES):
        metrics = found[f"always-{name}"].metrics
        assert metrics["quality"].value == pytest.approx(100 * pool.quality[:, place].mean())
        assert metrics["cost"].value == pytest.approx(1000 * pool.cost[:, place].mean())
        assert metrics[f"share:{name}"].value == 100.0
    assert found["always-large"].metrics["gain_best"].value == pytest.approx(0.0)
    assert found[RANDOM].metrics["quality"].value == pytest.approx(100 * pool.quality.mean())
    oracle = found[ORACLE_MONEY].metrics
    # The cheapest of the models that are right; if none is, the cheapest.
    choice = [next((m for m in range(3) if row[m] == row.max()), 0) for row in pool.quality]
    assert oracle["cost"].value == pytest.approx(1000 * np.mean([pool.cost[i, m] for i, m in enumerate(choice)]))
    assert oracle["gap_oracle"].value == pytest.approx(0.0)


def test_random_is_the_best_mix_of_models() -> None:
    """A model below the line between its neighbours is not mixed in; one above it is."""
    for middle, wanted in ((0.6, 0.5 + 0.4 * 0.25), (0.8, 0.8)):
        quality = np.tile([0.5, middle, 0.9], (10, 1))
        curve = results_of(pool_of(quality, np.tile([1.0, 2.0, 5.0], (10, 1))))[RANDOM].curve
        assert curve is not None
        assert curve.quality[25] == pytest.approx(100 * wanted)
        assert curve.cost is not None
        assert curve.cost[[0, 25, 100]] == pytest.approx([1000, 2000, 5000])


@pytest.mark.parametrize("seed", range(5))
def test_the_oracles_curve_is_the_best_of_all_choices(seed: int) -> None:
    """Of all ways to choose, none has more quality for the same money."""
    draw = np.random.default_rng(seed)
    pool = pool_of(np.round(draw.random((4, 3)) * 4) / 4, np.cumsum(0.2 + draw.random((4, 3)), axis=1))
    curve = results_of(pool)[ORACLE_MONEY].curve
    assert curve is not None
    assert curve.cost is not None
    rows = np.arange(4)
    ways = [np.array(way) for way in itertools.product(range(3), repeat=4)]
    for cost, quality in ((1000 * pool.cost[rows, way].mean(), 100 * pool.quality[rows, way].mean()) for way in ways):
        assert quality <= np.interp(cost, curve.cost, curve.quality) + 1.0, "1: the curve is told at each percent"


def test_a_router_that_predicts_each_models_quality() -> None:
    """It takes what it expects most of, and its curve what it expects most of at each price of quality."""
    pool = drawn()
    expected = 0.3 * pool.quality + np.random.default_rng(2).random(pool.quality.shape)
    result = results_of(pool, pool_policy(RouterScores("R", expected), pool))["R"]
    rows = np.arange(len(pool))
    assert result.metrics["quality"].value == pytest.approx(100 * pool.quality[rows, expected.argmax(axis=1)].mean())
    curve, means = result.curve, pool.cost.mean(axis=0)
    assert curve is not None
    assert curve.cost is not None
    for weight in (0.0, 0.01, 0.05, 0.1, 0.5, 2.0):
        choice = (expected - weight * means).argmax(axis=1)
        cost, quality = 1000 * pool.cost[rows, choice].mean(), 100 * pool.quality[rows, choice].mean()
        assert np.interp(cost, curve.cost, curve.quality) == pytest.approx(quality, abs=1.0), weight


def test_a_dearest_model_that_is_no_better_leaves_pgr_undefined() -> None:
    pool = pool_of(np.tile([0.9, 0.5, 0.9], (20, 1)), np.tile([1.0, 2.0, 3.0], (20, 1)))
    router = RouterScores("R", np.arange(20) / 20)
    metrics = results_of(pool, pool_policy(router, pool))["R"].metrics
    assert not {"pgr", "apgr_money", "pareto_dist_money"} & set(metrics)
    assert {"quality", "gain_best", "gap_oracle"} <= set(metrics)
    assert any(
        "PGR, APGR, CPT and ParetoDist are not defined" in note
        for note in undefined_metrics(EvaluationInputs(pool), [])
    )
