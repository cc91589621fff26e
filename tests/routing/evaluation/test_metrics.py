"""Metrics against definitions written down slowly, against closed forms, and with queries that count several times."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from ianvs_specdec.routing.evaluation.metrics import BINS, RouterScores, extra_cost
from ianvs_specdec.routing.evaluation.pool import pair_policy
from ianvs_specdec.routing.evaluation.results import Candidate
from ianvs_specdec.routing.outcomes.recorded import Sides


def seeds(count: int, fast: int = 40) -> list[Any]:
    """Numbers of random cases, of which the first few are fast tests."""
    return [*range(fast), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(fast, count))]


def measured(
    router: RouterScores, sides: Sides, weights: np.ndarray | None = None, most: int | None = None
) -> dict[str, float]:
    weights = np.ones(len(sides)) if weights is None else weights
    candidate = Candidate(pair_policy(router), sides)
    ranking = candidate.ranking.coarse(most) if most else candidate.ranking
    found = candidate.measure(ranking, weights[None, :])
    return {name: float(value[0]) for name, value in found.items() if not name.startswith("@")}


def extra_of(sides: Sides) -> np.ndarray | None:
    found = extra_cost(sides)
    return None if found is None else found[:, 0]


def random_case(draw: np.random.Generator) -> tuple[Sides, RouterScores]:
    """Ties in the scores, or none; qualities that are right or wrong, or anything between; costs, or none."""
    count = int(draw.integers(2, 40))
    steps = int(draw.choice([1, 2, 5, 1000]))
    edge, cloud = (np.round(draw.random(count) * steps) / steps for _ in range(2))
    # Now and then a query costs less in the cloud.
    costs = [None, None] if draw.random() < 0.3 else [draw.random(count), draw.choice([0.2, 1.0]) + draw.random(count)]
    scores = np.round(draw.random(count) * 8) / 8 if draw.random() < 0.5 else draw.random(count)
    labels = (draw.random(count) < scores).astype(float)
    return Sides(edge, cloud, *costs), RouterScores.at_threshold("R", scores, float(draw.random()), labels=labels)


def slow_points(scores: np.ndarray, gain: np.ndarray, spend: np.ndarray) -> list[tuple[float, float]]:
    """Part of the cost spent, and quality gained, after each query; of equal scores each has its mean."""
    points, spent, gained = [(0.0, 0.0)], 0.0, 0.0
    for score in sorted(set(scores.tolist()), reverse=True):
        same = scores == score
        for _ in range(int(same.sum())):
            spent += float(spend[same].mean()) / float(spend.sum())
            gained += float(gain[same].mean()) / len(gain)
            points.append((spent, gained))
    return points


def slow_at(points: list[tuple[float, float]], level: float) -> float:
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        if x1 >= level - 1e-12:
            return y0 + (y1 - y0) * (level - x0) / (x1 - x0)
    raise AssertionError(level)


def slow_cost_of(points: list[tuple[float, float]], wanted: float) -> float:
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        if y1 >= wanted - 1e-12:
            return x1 if y1 == y0 else x0 + (x1 - x0) * (wanted - y0) / (y1 - y0)
    raise AssertionError(wanted)


@pytest.mark.parametrize("seed", seeds(150))
def test_metrics_over_all_thresholds_by_their_definitions(seed: int) -> None:
    sides, router = random_case(np.random.default_rng(seed))
    found, gain = measured(router, sides), sides.gain
    for suffix, spend in (("", np.ones(len(gain))), ("_money", extra_of(sides))):
        if spend is None:
            assert "apgr_money" not in found
            continue
        points, total = slow_points(router.scores, gain, spend), float(gain.mean())
        for saved in (20, 40):
            drop = total - slow_at(points, 1 - saved / 100)
            assert found[f"drop{saved}{suffix}"] == pytest.approx(100 * drop, abs=1e-6)
            if not suffix and sides.cloud.sum() > 0:
                relative = 100 * drop / sides.cloud.mean()
                assert found[f"drop{saved}_relative"] == pytest.approx(relative, abs=1e-6)
        if total <= 1e-9:
            assert all(np.isnan(found[f"{name}{suffix}"]) for name in ("apgr", "cpt50", "cpt80"))
            continue
        area = sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in itertools.pairwise(points))
        assert found[f"apgr{suffix}"] == pytest.approx(area / total, abs=1e-6)
        for part in (50, 80):
            assert found[f"cpt{part}{suffix}"] == pytest.approx(
                100 * slow_cost_of(points, part / 100 * total), abs=1e-5
            )


@pytest.mark.parametrize("seed", seeds(100))
def test_metrics_of_decisions_by_their_definitions(seed: int) -> None:
    sides, router = random_case(np.random.default_rng(1000 + seed))
    found, count = measured(router, sides), len(sides)
    rows = list(zip(router.scores, sides.edge, sides.cloud, router.labels, strict=True))
    sent = [score >= router.threshold for score, *_ in rows]
    better = [cloud > edge for _, edge, cloud, _ in rows]
    quality = sum(cloud if hard else edge for hard, (_, edge, cloud, _) in zip(sent, rows, strict=True)) / count
    assert found["share"] == pytest.approx(100 * sum(sent) / count)
    assert found["quality"] == pytest.approx(100 * quality)
    edge, cloud = float(sides.edge.mean()), float(sides.cloud.mean())
    if cloud - edge > 1e-9:
        assert found["pgr"] == pytest.approx((quality - edge) / (cloud - edge))
    else:
        assert np.isnan(found["pgr"])
    hits = sum(a and b for a, b in zip(sent, better, strict=True))
    assert found["accuracy"] == pytest.approx(sum(a == b for a, b in zip(sent, better, strict=True)) / count)
    for name, value, whole in (("precision", hits, sum(sent)), ("recall", hits, sum(better))):
        assert found[name] == pytest.approx(value / whole) if whole else np.isnan(found[name])
    if sum(better):
        precision, recall = hits / sum(sent) if sum(sent) else 0.0, hits / sum(better)
        both = precision + recall
        assert found["f1"] == pytest.approx(2 * precision * recall / both if both else 0.0)
    else:
        assert np.isnan(found["f1"])
    pairs = [
        (s, t)
        for s, a in zip(router.scores, better, strict=True)
        if a
        for t, b in zip(router.scores, better, strict=True)
        if not b
    ]
    won = sum(1.0 if s > t else 0.5 if s == t else 0.0 for s, t in pairs)
    assert found["auroc"] == pytest.approx(won / len(pairs)) if pairs else np.isnan(found["auroc"])
    error = 0.0
    for number in range(BINS):
        inside = [row for row in rows if min(int(row[0] * BINS), BINS - 1) == number]
        error += abs(sum(row[0] for row in inside) - sum(row[3] for row in inside)) / count
    assert found["ece"] == pytest.approx(error)
    if sides.cloud_cost is not None and sides.edge_cost is not None:
        spent = [c if hard else e for hard, e, c in zip(sent, sides.edge_cost, sides.cloud_cost, strict=True)]
        assert found["cost"] == pytest.approx(1000 * sum(spent) / count)


@pytest.mark.parametrize("seed", range(60))
def test_a_weight_is_that_many_copies_of_a_query(seed: int) -> None:
    draw = np.random.default_rng(2000 + seed)
    sides, router = random_case(draw)
    times = draw.integers(0, 4, size=len(sides))
    times[int(draw.integers(len(sides)))] += 1
    columns = [
        None if c is None else c.repeat(times) for c in (sides.edge, sides.cloud, sides.edge_cost, sides.cloud_cost)
    ]
    copied = RouterScores.at_threshold(
        "R", router.scores.repeat(times), router.threshold, labels=router.labels.repeat(times)
    )
    found, expected = measured(router, sides, times.astype(float)), measured(copied, Sides(*columns))
    assert found == pytest.approx(expected, abs=1e-5, nan_ok=True)


def test_few_steps_are_as_good_as_all() -> None:
    draw = np.random.default_rng(5)
    count = 20_000
    gain = draw.choice([-1.0, 0.0, 1.0], p=[0.1, 0.6, 0.3], size=count)
    edge = (gain < 0).astype(float)
    sides = Sides(edge, edge + gain, None, draw.random(count))
    for scores in (
        draw.random(count) + 0.3 * gain,
        np.where(draw.random(count) < 0.6, 0.5, draw.random(count)) + 0.2 * gain,
    ):
        fine, coarse = (measured(RouterScores("R", scores), sides, most=most) for most in (None, 1000))
        for name in ("apgr", "apgr_money", "auroc"):
            assert coarse[name] == pytest.approx(fine[name], abs=2e-4)
        for name in ("cpt50", "cpt80", "cpt50_money", "drop20", "drop40", "drop40_money"):
            assert coarse[name] == pytest.approx(fine[name], abs=0.15)


def test_money_that_is_not_spent_in_a_draw_leaves_its_curve_undefined() -> None:
    sides = Sides(np.zeros(2), np.ones(2), None, np.array([1.0, 0.0]))
    found = measured(RouterScores("R", np.array([0.0, 1.0])), sides, np.array([0.0, 2.0]))
    assert all(np.isnan(found[name]) for name in ("apgr_money", "cpt50_money", "drop20_money"))
    assert found["apgr"] == pytest.approx(0.5)
