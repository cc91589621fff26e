"""Evaluation of routers and baselines on the same queries and bootstrap draws, so that every difference is paired.

With more than ``STEPS`` queries the draws take neighbouring scores together, so that as many steps remain.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ianvs_specdec.routing.evaluation.bootstrap import RESAMPLES, SEED, Estimate, draws, estimate, intervals, p_values
from ianvs_specdec.routing.evaluation.curve import ROUNDING, DrawnCurves, Ranking
from ianvs_specdec.routing.evaluation.metrics import Answers, RouterScores, Tally, Values, extra_cost, over_thresholds
from ianvs_specdec.routing.evaluation.pool import ORACLES, RANDOM, RoutingPolicy, baseline_policies, pair_policy
from ianvs_specdec.routing.outcomes.recorded import Floats, Sides

STEPS = 1000
GRID: Floats = np.arange(101) / 100.0
"""Cost levels of curves."""
LEVELS: Floats = np.arange(5, 100, 5) / 100.0
"""Cost levels at which curves are compared."""
TIMED = 1000
"""The most timed queries that percentiles are computed from, spread evenly."""


@dataclass(frozen=True, eq=False)
class Curve:
    """At each of ``GRID``: quality (%), cost per 1,000 queries, and the score of the last query in the cloud."""

    quality: Floats
    low: Floats
    high: Floats
    cost: Floats | None
    thresholds: Floats


@dataclass(frozen=True, eq=False)
class Result:
    """The defined metrics by name (see ``metrics`` and ``overhead``), and the curve of a router."""

    name: str
    threshold: float | None
    metrics: Mapping[str, Estimate]
    curve: Curve | None
    baseline: bool = False


@dataclass(frozen=True)
class Difference:
    """``first`` minus ``second``. ``metric``: ``apgr``, or ``quality`` (points of 100) at the cost ``level``; ``axis``:
    ``share`` of the queries or ``money``.
    """

    first: str
    second: str
    axis: str
    metric: str
    level: float | None
    value: float
    low: float
    high: float
    p: float


@dataclass(frozen=True)
class Evaluation:
    """``results``: the baselines first. ``differences``: each router to random routing, then among the routers.
    ``models``: of a pool, from the cheapest to the dearest.
    """

    queries: int
    resamples: int
    seed: int
    results: Sequence[Result]
    differences: Sequence[Difference]
    models: Sequence[str] = ()

    def ahead_of_random(self, name: str) -> int:
        """At how many of ``LEVELS`` the router is better than random routing, with an interval that excludes 0."""
        axis = "money" if self.models else "share"
        return sum(
            item.low > 0
            for item in self.differences
            if (item.first, item.second, item.axis, item.metric) == (name, RANDOM, axis, "quality")
        )


def evaluate(
    sides: Sides, routers: Sequence[RouterScores], *, resamples: int = RESAMPLES, seed: int = SEED
) -> Evaluation:
    return evaluate_policies(sides, [pair_policy(router) for router in routers], resamples=resamples, seed=seed)


def evaluate_policies(
    answers: Answers, policies: Sequence[RoutingPolicy], *, resamples: int = RESAMPLES, seed: int = SEED
) -> Evaluation:
    """``policies``: routers of the same queries, their names all different."""
    known = [Candidate(one, answers) for one in (*baseline_policies(answers), *policies)]
    _add_distances(known, [candidate.values for candidate in known])
    for weights in draws(len(answers), resamples, seed):
        _add_distances(known, [candidate.draw(weights) for candidate in known])
    compared = [candidate for candidate in known if not candidate.baseline]
    random = next(candidate for candidate in known if candidate.router.name == RANDOM)
    pairs = [*((candidate, random) for candidate in compared), *itertools.combinations(compared, 2)]
    return Evaluation(
        queries=len(answers),
        resamples=resamples,
        seed=seed,
        results=[candidate.result() for candidate in known],
        differences=[item for pair in pairs for item in _compare(*pair)],
        models=() if answers.is_pair else answers.models,
    )


class Candidate:
    """A router with its metrics on the queries and in each draw. Names of curves begin with ``@``, [draws, levels]."""

    def __init__(self, policy: RoutingPolicy, answers: Answers) -> None:
        self.router, self.baseline = policy.router, policy.baseline
        self._pair, self._steps, quality = answers.is_pair, policy.steps, answers.quality
        self._tally, self._count = Tally(self.router, policy.chosen, answers), quality.shape[1] - 1
        # The mean over queries is wanted, and there are as many steps of each.
        self._gain, extra = self._count * np.diff(quality, axis=1).ravel(), extra_cost(answers)
        self._cost, self._extra = answers.cost, None if extra is None else extra.ravel()
        self.ranking = Ranking(np.zeros(1) if policy.steps is None else policy.steps.ravel())
        self._coarse = self.ranking.coarse(STEPS)
        self.values = self.measure(self.ranking, np.ones((1, len(quality))))
        self._drawn: list[Values] = []

    def draw(self, weights: Floats) -> Values:
        self._drawn.append(self.measure(self._coarse, weights))
        return self._drawn[-1]

    def measure(self, ranking: Ranking, weights: Floats) -> Values:
        """``weights``: of the queries in each draw, [draws, queries]."""
        alone, values = self._tally(weights)
        if self._steps is None:
            return values
        each = weights if self._count == 1 else np.repeat(weights, self._count, axis=1)
        path = DrawnCurves.of(ranking, each, self._gain, self._extra)
        found, axes = over_thresholds(path, alone[0]), {"share": path.share, "money": path.money}
        if not self._pair:
            found, axes = {name: found[name] for name in found if name.endswith("_money")}, {"money": path.money}
        return values | found | _at_levels(path, alone[0], axes)

    def drawn(self, name: str) -> Floats:
        return np.concatenate([block[name] for block in self._drawn])

    def result(self) -> Result:
        names = [name for name in self.values if not name.startswith("@") and np.isfinite(self.values[name][0])]
        metrics = {name: estimate(float(self.values[name][0]), self.drawn(name)) for name in names}
        metrics |= {**overhead(self.router.seconds), **self.router.reworded}
        return Result(self.router.name, self.router.threshold, metrics, self._curve(), self.baseline)

    def _curve(self) -> Curve | None:
        name = "@share grid" if self._pair else "@money grid"
        if name not in self.values:
            return None
        low, high = intervals(self.drawn(name))
        return Curve(self.values[name][0], low, high, self._costs(), self._thresholds())

    def _costs(self) -> Floats | None:
        if self._cost is None:
            return None
        # Spent money moves along the curve as quality does.
        spent, axis = self._count * np.diff(self._cost, axis=1).ravel(), None if self._pair else self._extra
        path = DrawnCurves.of(self.ranking, np.ones((1, len(spent))), spent, axis)
        along = path.share if path.money is None else path.money
        return 1000.0 * (self._cost[:, 0].mean() + path.at(along, GRID)[0])

    def _thresholds(self) -> Floats:
        if not self._pair:
            return np.full(len(GRID), np.nan)
        place = np.ceil(GRID * len(self.router.scores) - 1e-9).astype(np.intp) - 1
        scores = self.router.scores[self.ranking.order]
        return np.where(place < 0, np.nan, scores[place.clip(min=0)])


def _at_levels(path: DrawnCurves, start: Floats, axes: Mapping[str, Floats | None]) -> Values:
    """The curve in % at ``GRID`` and ``LEVELS``, and normalised by both ends. ``start``: its first quality."""
    total = np.where(path.total > ROUNDING, path.total, np.nan)[:, None]
    values = {}
    for name, axis in axes.items():
        if axis is not None:
            gained = path.at(axis, GRID)
            values[f"@{name} grid"] = 100.0 * (start[:, None] + gained)
            values[f"@{name}"] = values[f"@{name} grid"][:, np.rint(100 * LEVELS).astype(np.intp)]
            values[f"@{name} normalised"] = gained / total
    return values


def _add_distances(known: Sequence[Candidate], measured: Sequence[Values]) -> None:
    """``measured``: the values of each candidate in the same draws, to which the distances are added."""
    for suffix, curve in (("", "@share normalised"), ("_money", "@money normalised")):
        pairs = zip(known, measured, strict=True)
        routers = [values for one, values in pairs if one.router.name not in ORACLES and curve in values]
        if routers:
            for values, far in zip(routers, mean_distances(GRID, [one[curve] for one in routers]), strict=True):
                values[f"pareto_dist{suffix}"] = far


def overhead(seconds: Floats | None) -> dict[str, Estimate]:
    """Percentiles of a router's time for one query, in ms, as ``overhead_p50`` and ``overhead_p95``."""
    if seconds is None or not len(seconds):
        return {}
    if len(seconds) > TIMED:
        seconds = seconds[np.linspace(0, len(seconds) - 1, TIMED).astype(np.intp)]
    drawn = np.random.default_rng(SEED).choice(seconds, size=(RESAMPLES, len(seconds)))
    found = {}
    for percent in (50, 95):
        value = float(np.percentile(seconds, percent))
        found[f"overhead_p{percent}"] = estimate(1000.0 * value, 1000.0 * np.percentile(drawn, percent, axis=1))
    return found


def _compare(first: Candidate, second: Candidate) -> Iterable[Difference]:
    names = (first.router.name, second.router.name)
    for axis, metric, curve in (("share", "apgr", "@share"), ("money", "apgr_money", "@money")):
        if curve not in first.values:
            continue
        value = first.values[metric] - second.values[metric]
        drawn = (first.drawn(metric) - second.drawn(metric))[:, None]
        yield from _differences((*names, axis, "apgr"), [None], value, drawn)
        value = first.values[curve][0] - second.values[curve][0]
        yield from _differences(
            (*names, axis, "quality"), LEVELS.tolist(), value, first.drawn(curve) - second.drawn(curve)
        )


def _differences(
    what: tuple[str, str, str, str], levels: Sequence[float | None], values: Floats, drawn: Floats
) -> Iterable[Difference]:
    columns = [column.tolist() for column in (values, *intervals(drawn), p_values(drawn))]
    for level, *numbers in zip(levels, *columns, strict=True):
        yield Difference(*what, level, *numbers)


def mean_distances(levels: Floats, curves: Sequence[Floats]) -> list[Floats]:
    """ParetoDist (LLMRouterBench, arXiv 2601.07206): of each curve, the mean Euclidean distance of its points from the
    nearest point of the Pareto frontier of all curves, [draws]. Cost and quality are normalised by the cheapest and the
    dearest model alone.

    ``levels``: rising costs, [levels]; ``curves``: the quality at each, [draws, levels] with NaN in draws without any.
    """
    best = np.maximum.reduce(list(curves))
    cheaper = np.concatenate([np.full((len(best), 1), -np.inf), np.maximum.accumulate(best, axis=1)[:, :-1]], axis=1)
    # A point of infinite quality is nearest to none.
    frontier = np.where((best > cheaper + ROUNDING) | np.isnan(best), best, np.inf)
    found = []
    for curve in curves:
        nearest = np.full(curve.shape, np.inf)
        for place, level in enumerate(levels):
            squared = (levels - level) ** 2 + (curve - frontier[:, place : place + 1]) ** 2
            np.minimum(nearest, squared, out=nearest)
        found.append(np.sqrt(nearest).mean(axis=1))
    return found
