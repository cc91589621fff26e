"""Evaluation of routers that choose from a pool of models.

The models are in the order of their mean costs, and a query takes steps: from the cheapest model to the next, and so on
to the dearest. Each step gains some quality and costs some money. A router is told by a score of every step of every
query, which never rises from a query's step to its next. Its curve takes the steps of all queries by falling score. So
a pool of two models is what ``results`` makes of an edge and a cloud, over money.

- A router with one score of a query has a threshold for each step. Its curve moves all of them alike.
- A router that predicts the quality of each model takes what it expects most of. Its curve weighs quality against the
  models' mean costs, from nothing but cost to nothing but quality, and on to the dearest model.
- ``random`` is the best that can be done without looking at the query: at each cost the best mix of models that are
  drawn by chance (the Zero router of RouterBench, arXiv 2403.12031). Its own decision draws all models alike.
- ``oracle by cost`` takes the best answer to each query, of equally good ones the cheaper model's. Its curve gains most
  for the money first.

PGR and all that comes of it are about the way from the cheapest model to the dearest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ianvs_specdec.routing.evaluation.bootstrap import RESAMPLES, SEED, intervals
from ianvs_specdec.routing.evaluation.curve import ROUNDING, DrawnCurves, Ranking
from ianvs_specdec.routing.evaluation.quality import Scored, Values, over_thresholds, ratio
from ianvs_specdec.routing.evaluation.results import (
    GRID,
    ORACLE_MONEY,
    RANDOM,
    Candidate,
    Curve,
    Evaluation,
    at_levels,
    measured,
)
from ianvs_specdec.routing.outcomes.pool import Pool
from ianvs_specdec.routing.outcomes.recorded import Floats


@dataclass(frozen=True, eq=False)
class Chooser:
    """``steps``: the scores of the steps, float64 [queries, models - 1], or None for a model alone; ``chosen``: with
    which probability it asks each model, float64 [queries, models], or None where that is not known.
    """

    router: Scored
    steps: Floats | None
    chosen: Floats | None
    baseline: bool = False


def only(model: str) -> str:
    """What the model alone is called."""
    return f"always-{model}"


def chooser(router: Scored, pool: Pool, thresholds: Sequence[float] | None = None) -> Chooser:
    """``router``: its scores are one of each query, [queries], or the quality that it expects of each model, [queries,
    models]. ``thresholds``: rising, one fewer than there are models, for the former.
    """
    if router.scores.ndim == 1:
        return _cut(router, thresholds, len(pool.models))
    extra = np.broadcast_to(np.diff(pool.cost.mean(axis=0)), (len(pool), len(pool.models) - 1))
    steps = _slopes(np.diff(router.scores, axis=1), extra)
    return Chooser(router, steps, np.eye(len(pool.models))[router.scores.argmax(axis=1)])


def _cut(router: Scored, thresholds: Sequence[float] | None, models: int) -> Chooser:
    """The dearer a model, the more of the thresholds a query's score reaches.

    Without thresholds scores from 0 to 1 are cut into equal parts. Of others only the curve is told, from thresholds
    that give each model as many queries.
    """
    scores, inside = router.scores, router.scores.min() >= 0 and router.scores.max() <= 1
    even = np.arange(1, models) / models
    if thresholds is None and not inside:
        return Chooser(router, scores[:, None] - np.quantile(scores, even), None)
    limits = even if thresholds is None else np.asarray(thresholds, dtype=np.float64)
    places = np.searchsorted(limits, scores, side="right")
    return Chooser(router, scores[:, None] - limits, np.eye(models)[places])


def evaluate_pool(
    pool: Pool, choosers: Sequence[Chooser], *, resamples: int = RESAMPLES, seed: int = SEED
) -> Evaluation:
    """``choosers``: routers of the same queries, their names all different."""
    known = [_Chosen(chooser, pool) for chooser in (*_baselines(pool), *choosers)]
    return measured(known, len(pool), resamples=resamples, seed=seed, models=pool.models)


def _baselines(pool: Pool) -> list[Chooser]:
    queries, models = pool.quality.shape
    none = np.zeros(queries)
    each = np.eye(models)
    found = [Chooser(Scored(only(name), none), None, each[[place] * queries], True) for place, name in
             enumerate(pool.models)]  # fmt: skip
    gains, extra = np.diff(pool.quality, axis=1), np.diff(pool.cost, axis=1)
    mix = _slopes(gains.mean(axis=0)[None, :], extra.mean(axis=0)[None, :])
    evenly = np.full((queries, models), 1.0 / models)
    found.append(Chooser(Scored(RANDOM, none), np.repeat(mix, queries, axis=0), evenly, True))
    # The cheapest of the best: the first, as they are in order.
    best = each[pool.quality.argmax(axis=1)]
    found.append(Chooser(Scored(ORACLE_MONEY, none), _slopes(gains, extra), best, True))
    return found


def _slopes(gains: Floats, extra: Floats) -> Floats:
    """What each step gains for its money, [queries, steps], on the best way through the models: steps that gain more
    than those before them are taken together with these, so that the slopes of a query never rise.
    """
    # A step that costs nothing, or gives money back, comes first if it gains anything.
    widths = np.maximum(extra, 1e-9 * extra.max())
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


class _Chosen(Candidate):
    """A router that chooses from a pool."""

    def __init__(self, chooser: Chooser, pool: Pool) -> None:
        self._steps, self._models, self._count = chooser.steps, pool.models, len(pool.models) - 1
        # The mean over queries is wanted, and there are as many steps of each.
        self._gain = self._count * np.diff(pool.quality, axis=1).ravel()
        self._extra, self._cheapest = np.diff(pool.cost, axis=1).ravel(), float(pool.cost[:, 0].mean())
        columns = [pool.quality, pool.quality.max(axis=1)[:, None]]
        self._decides = chooser.chosen is not None
        if chooser.chosen is not None:
            asked = [(chooser.chosen * kind).sum(axis=1)[:, None] for kind in (pool.quality, pool.cost)]
            columns += [*asked, chooser.chosen]
        self._columns = np.concatenate(columns, axis=1)
        steps = np.zeros((len(pool), self._count)) if chooser.steps is None else chooser.steps
        super().__init__(chooser.router, Ranking(steps.ravel()), len(pool), chooser.baseline)

    def _measure(self, ranking: Ranking, weights: Floats) -> Values:
        sums = (weights @ self._columns).T / weights.sum(axis=1)
        alone, bound = sums[: self._count + 1], sums[self._count + 1]
        values = self._decided(alone, bound, sums[self._count + 2 :]) if self._decides else {}
        if self._steps is not None:
            path = DrawnCurves.of(ranking, np.repeat(weights, self._count, axis=1), self._gain, self._extra)
            found = over_thresholds(path, alone[0])
            values |= {name: value for name, value in found.items() if name.endswith("_money")}
            values |= at_levels(path, alone[0], {"money": path.money})
        return values

    def _decided(self, alone: Floats, bound: Floats, asked: Floats) -> Values:
        quality, cost, shares = asked[0], asked[1], asked[2:]
        return {
            "quality": 100.0 * quality,
            "cost": 1000.0 * cost,
            "pgr": ratio(quality - alone[0], alone[-1] - alone[0]),
            "gain_best": 100.0 * (ratio(quality, alone.max(axis=0)) - 1.0),
            "gap_oracle": 100.0 * (1.0 - ratio(quality, bound)),
            **{share_of(name): 100.0 * share for name, share in zip(self._models, shares, strict=True)},
        }

    def _curve(self) -> Curve | None:
        if "@money grid" not in self.values:
            return None
        low, high = intervals(self.drawn("@money grid"))
        spent = self._extra.sum() / (len(self._extra) // self._count)
        costs = 1000.0 * (self._cheapest + GRID * spent)
        return Curve(self.values["@money grid"][0], low, high, costs, np.full(len(GRID), np.nan))


def share_of(model: str) -> str:
    """The metric that tells which part of the queries (%) the model is asked."""
    return f"share:{model}"


def undefined_of(pool: Pool, choosers: Sequence[Chooser]) -> list[str]:
    """What the user is to know of the figures, one line a thing."""
    means = 100 * pool.quality.mean(axis=0)
    notes = [f"from the cheapest to the dearest model: {', '.join(pool.models)}; the best alone is {pool.best}"]
    if means[-1] - means[0] <= 100 * ROUNDING:
        notes.append(
            f"{pool.models[-1]}, the dearest, is not better than {pool.models[0]}, the cheapest ({means[-1]:.2f} % and "
            f"{means[0]:.2f} %): PGR, APGR, CPT and ParetoDist are not defined"
        )
    for one in choosers:
        if np.ptp(one.router.scores) == 0:
            notes.append(f"{one.router.name} gives all queries the same score: it routes as chance does")
        if one.chosen is None:
            notes.append(f"{one.router.name}: scores are not all from 0 to 1: give --threshold for its decisions")
    return notes
