"""Routers that choose from a pool of models: two of them as an edge and a cloud, more against slow definitions."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from ianvs_specdec.common.types import Query
from ianvs_specdec.routing.evaluation import tables
from ianvs_specdec.routing.evaluation.curve import Sides
from ianvs_specdec.routing.evaluation.inputs import EvaluationInputs, undefined
from ianvs_specdec.routing.evaluation.pool import ORACLE_MONEY, RANDOM, Chooser, baselines, chooser
from ianvs_specdec.routing.evaluation.quality import Scored
from ianvs_specdec.routing.evaluation.results import GRID, Result, evaluate, evaluate_choices
from ianvs_specdec.routing.outcomes.recorded import Pool

NAMES = ("small", "middle", "large")


def pool_of(quality: np.ndarray, cost: np.ndarray) -> Pool:
    queries = tuple(Query((f"question {index}",), id=str(index)) for index in range(len(quality)))
    return Pool(queries, quality, cost, NAMES[: quality.shape[1]] if quality.shape[1] > 2 else ("edge", "cloud"))


def drawn(count: int = 200, models: int = 3, seed: int = 0) -> Pool:
    draw = np.random.default_rng(seed)
    quality = (draw.random((count, models)) < np.linspace(0.5, 0.9, models)).astype(float)
    return pool_of(quality, 4.0 ** np.arange(models) * (0.5 + draw.random((count, models))))


def results_of(pool: Pool, *choosers: Chooser) -> dict[str, Result]:
    return {result.name: result for result in evaluate_choices(pool, choosers, resamples=60, seed=0).results}


def knowing(pool: Pool, noise: float = 0.2) -> Scored:
    need = pool.quality[:, -1] - pool.quality[:, 0]
    return Scored("R", 0.5 + 0.2 * need + noise * np.random.default_rng(1).uniform(-1, 1, len(pool)))


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


def test_random_where_no_model_costs_more_than_another() -> None:
    pool = drawn()
    free = pool_of(pool.quality, np.ones_like(pool.cost))
    assert results_of(free)[RANDOM].metrics["quality"].value == pytest.approx(100 * pool.quality.mean())
    mixed = next(one for one in baselines(free) if one.router.name == RANDOM)
    assert mixed.steps is not None
    assert mixed.steps.shape == (len(pool), 2)


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


@pytest.mark.parametrize("thresholds", [[0.4, 0.6], [0.55, 0.55], None])
def test_thresholds_in_the_order_of_cost(thresholds: list[float] | None) -> None:
    pool = drawn()
    router = knowing(pool)
    result = results_of(pool, chooser(router, pool, thresholds))["R"]
    low, high = thresholds or [1 / 3, 2 / 3]
    choice = np.array([0 if score < low else 1 if score < high else 2 for score in router.scores])
    rows = np.arange(len(pool))
    assert result.metrics["quality"].value == pytest.approx(100 * pool.quality[rows, choice].mean())
    assert result.metrics["cost"].value == pytest.approx(1000 * pool.cost[rows, choice].mean())
    for place, name in enumerate(NAMES):
        assert result.metrics[f"share:{name}"].value == pytest.approx(100 * (choice == place).mean())
    curve = result.curve
    assert curve is not None
    assert curve.cost is not None
    # The decision is one point of the curve, on which all thresholds move alike.
    assert np.interp(result.metrics["cost"].value, curve.cost, curve.quality) == pytest.approx(
        result.metrics["quality"].value, abs=1.0
    )
    moved = np.array([0 if score < low + 0.05 else 1 if score < high + 0.05 else 2 for score in router.scores])
    cost, quality = 1000 * pool.cost[rows, moved].mean(), 100 * pool.quality[rows, moved].mean()
    assert np.interp(cost, curve.cost, curve.quality) == pytest.approx(quality, abs=1.0)
    assert (curve.quality[0], curve.quality[-1]) == pytest.approx(tuple(100 * pool.quality.mean(axis=0)[[0, -1]]))


def test_a_router_that_predicts_each_models_quality() -> None:
    """It takes what it expects most of, and its curve what it expects most of at each price of quality."""
    pool = drawn()
    expected = 0.3 * pool.quality + np.random.default_rng(2).random(pool.quality.shape)
    result = results_of(pool, chooser(Scored("R", expected), pool))["R"]
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
    router = Scored("R", np.arange(20) / 20)
    metrics = results_of(pool, chooser(router, pool))["R"].metrics
    assert not {"pgr", "apgr_money", "pareto_dist_money"} & set(metrics)
    assert {"quality", "gain_best", "gap_oracle"} <= set(metrics)
    assert any(
        "PGR, APGR, CPT and ParetoDist are not defined" in note for note in undefined(EvaluationInputs(pool), [])
    )


def test_tables_tell_the_models() -> None:
    pool = drawn()
    evaluation = evaluate_choices(pool, [chooser(knowing(pool), pool)], resamples=60, seed=0)
    text = tables.to_text(evaluation)
    assert "cloud" not in text
    assert "queries that each model is asked, %" in text
    document = json.loads(json.dumps(tables.to_document(evaluation), allow_nan=False))
    (row,) = [row for row in document["metrics"] if not row["baseline"]]
    assert row["share:middle"] is not None
    curves = document["curves"]
    assert {row["router"] for row in curves} == {RANDOM, ORACLE_MONEY, "R"}
    assert len(curves) == 3 * len(GRID)
    assert list(curves[0])[1] == "cost_share"


KNOWN = {
    "share": (26.666666666666668, 20.0, 35.020833333333336),
    "quality": (90.0, 84.95833333333333, 95.0),
    "quality_of_cloud": (105.88235294117648, 99.0724697469747, 115.33107808340728),
    "pgr": (1.272727272727273, 0.9692640692640694, 2.3346153846153834),
    "f1": (0.8484848484848484, 0.7499067164179104, 0.9355535643170053),
    "cost": (18.2, 12.630208333333323, 24.731458333333325),
    "auroc": (0.96015731874145, 0.9337146736535523, 0.9875808212331649),
    "apgr": (1.1007575757575758, 0.9141130952380951, 1.74409485479798),
    "cpt50": (10.833333333333334, 4.572916666666667, 16.25),
    "cpt80": (17.166666666666668, 7.495833333333334, 25.337500000000002),
    "drop20_relative": (-3.9215686274509833, -8.087121212121211, -0.9431758067360251),
    "apgr_money": (1.08866983531932, 0.9034449481403795, 1.7481095571789784),
    "cpt80_money": (18.117820324005898, 8.47232365518817, 26.346406677966396),
    "drop40_money": (-6.666666666666668, -11.66737012987013, -2.500000000000002),
}
"""Figures from before there were pools."""


def test_figures_of_an_edge_and_a_cloud_are_what_they_were() -> None:
    i = np.arange(120)
    sides = Sides((i % 3 > 0) * 1.0, (i % 7 > 0) * 1.0, 0.001 + (i % 5) / 1000, 0.01 + (i % 11) / 100)
    router = Scored.at("R", (i * 37 % 100) / 200 + (i % 3 == 0) * 0.4, 0.5)
    found = evaluate(sides, [router], resamples=200, seed=0).results[-1]
    for name, wanted in KNOWN.items():
        one = found.metrics[name]
        assert (one.value, one.low, one.high) == pytest.approx(wanted, rel=1e-12), name
    assert found.curve is not None
    assert found.curve.cost is not None
    assert found.curve.quality[::25] == pytest.approx([66.66666666666666, 88.33333333333333, 93.33333333333333,
                                                       89.16666666666666, 85.0], rel=1e-12)  # fmt: skip
    assert found.curve.cost[::25] == pytest.approx([3.0, 17.65833333333333, 31.741666666666667, 45.48333333333332,
                                                    59.58333333333331], rel=1e-12)  # fmt: skip
