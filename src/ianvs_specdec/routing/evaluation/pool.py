"""Routers that choose among the models of a pool, or between an edge and a cloud.

Models are sorted by mean cost, and a query takes steps from the cheapest one to the next. A router is a score of every
step of every query, which never rises from a query's step to its next. Its curve takes all steps by falling score.

- A router with one score of a query has a threshold for each step. Its curve moves all of them alike.
- A router that predicts the quality of each model takes the best. Its curve weighs quality against the mean costs.
- ``random``: at each cost the best random mix of models (the Zero router of RouterBench, arXiv 2403.12031). Its own
  decision draws all models alike.
- ``oracle`` sends what gains; ``oracle by cost`` takes the cheapest of the best answers, and its curve gains most for
  the money first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ianvs_specdec.routing.evaluation.metrics import Answers, RouterScores, extra_cost
from ianvs_specdec.routing.outcomes.recorded import Floats, Pool

EDGE, CLOUD, RANDOM, ORACLE, ORACLE_MONEY = ("always-edge", "always-cloud", "random", "oracle", "oracle by cost")
"""What every evaluation of a pair has beside the routers; the last only where costs are known."""
BASELINES = (EDGE, CLOUD, RANDOM, ORACLE, ORACLE_MONEY)
ORACLES = (ORACLE, ORACLE_MONEY)
"""Not on the frontier of routers."""


@dataclass(frozen=True, eq=False)
class RoutingPolicy:
    """``steps``: the scores of the steps, float64 [queries, models - 1], or None for a model alone; ``chosen``: with
    which probability it asks each model, float64 [queries, models], or None where that is not known.
    """

    router: RouterScores
    steps: Floats | None
    chosen: Floats | None
    baseline: bool = False


def only(model: str) -> str:
    return f"always-{model}"


def pair_policy(router: RouterScores) -> RoutingPolicy:
    sent = router.sent
    return RoutingPolicy(router, router.scores[:, None], None if sent is None else np.stack([1.0 - sent, sent], axis=1))


def pool_policy(router: RouterScores, pool: Pool, thresholds: Sequence[float] | None = None) -> RoutingPolicy:
    """``thresholds``: rising, one fewer than there are models, for a router with one score of a query. The default for
    scores from 0 to 1 is equal parts; other scores have only a curve, from thresholds that give each model as many
    queries.
    """
    # A router's own threshold and label are for two models.
    router = RouterScores(router.name, router.scores, seconds=router.seconds, reworded=router.reworded)
    scores, each = router.scores, np.eye(len(pool.models))
    if scores.ndim > 1:
        extra = np.broadcast_to(np.diff(pool.cost.mean(axis=0)), (len(pool), len(pool.models) - 1))
        return RoutingPolicy(router, _slopes(np.diff(scores, axis=1), extra), each[scores.argmax(axis=1)])
    even = np.arange(1, len(pool.models)) / len(pool.models)
    if thresholds is None and not 0 <= scores.min() <= scores.max() <= 1:
        return RoutingPolicy(router, scores[:, None] - np.quantile(scores, even), None)
    limits = even if thresholds is None else np.asarray(thresholds, dtype=np.float64)
    return RoutingPolicy(router, scores[:, None] - limits, each[np.searchsorted(limits, scores, side="right")])


def baseline_policies(answers: Answers) -> Iterator[RoutingPolicy]:
    quality, extra = answers.quality, extra_cost(answers)
    queries, models = quality.shape
    none, each, gains = np.zeros(queries), np.eye(models), np.diff(quality, axis=1)
    for place, name in enumerate(answers.models):
        yield RoutingPolicy(RouterScores(only(name), none), None, each[[place] * queries], True)
    mix = np.zeros((1, models - 1))
    if extra is not None:
        mix = _slopes(gains.mean(axis=0)[None, :], extra.mean(axis=0)[None, :])
    yield RoutingPolicy(
        RouterScores(RANDOM, none), np.repeat(mix, queries, axis=0), np.full((queries, models), 1.0 / models), True
    )
    # Of equally good models the first one, which is the cheapest.
    best = each[quality.argmax(axis=1)]
    if answers.is_pair:
        yield RoutingPolicy(RouterScores(ORACLE, none), gains, best, True)
    if extra is not None:
        yield RoutingPolicy(RouterScores(ORACLE_MONEY, none), _slopes(gains, extra), best, True)


def _slopes(gains: Floats, extra: Floats) -> Floats:
    """Gain per money of each step, [queries, steps]. Steps that gain more than those before them are joined with these,
    so that the slopes of a query never rise.
    """
    # A step that costs nothing, or gives money back, comes first if it gains anything.
    widths = np.maximum(extra, 1e-9 * extra.max())
    if gains.shape[1] == 1:
        return gains / widths
    found = np.empty_like(gains)
    for row, (rises, runs) in enumerate(zip(gains, widths, strict=True)):
        joined: list[tuple[float, float, int]] = []
        for rise, run in zip(rises.tolist(), runs.tolist(), strict=True):
            steps = 1
            while joined and joined[-1][0] * run <= rise * joined[-1][1]:
                last = joined.pop()
                rise, run, steps = rise + last[0], run + last[1], steps + last[2]
            joined.append((rise, run, steps))
        found[row] = [rise / run for rise, run, steps in joined for _ in range(steps)]
    return found
