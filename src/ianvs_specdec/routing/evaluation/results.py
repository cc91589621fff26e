"""Evaluation: routers beside the edge alone, the cloud alone, random routing and the oracle, with intervals.

All of them are measured on the same queries and the same bootstrap draws (see ``bootstrap``), so that every difference
is paired. Up to ``STEPS`` queries every interval is exact; with more, the draws take neighbouring scores together, so
many that as many steps remain.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ianvs_specdec.routing.evaluation.bootstrap import RESAMPLES, SEED, Estimate, draws, estimate, intervals, p_values
from ianvs_specdec.routing.evaluation.curve import ROUNDING, DrawnCurves, Ranking, Sides
from ianvs_specdec.routing.evaluation.pareto import mean_distances
from ianvs_specdec.routing.evaluation.quality import Scored, Tally, Values, over_thresholds
from ianvs_specdec.routing.outcomes.recorded import Floats

STEPS = 1000
GRID: Floats = np.arange(101) / 100.0
"""Shares of queries sent to the cloud at which curves are told."""
LEVELS: Floats = np.arange(5, 100, 5) / 100.0
"""Cost levels at which curves are compared."""
TIMED = 1000
"""Of more single queries that were timed, so many are taken, spread evenly."""
EDGE, CLOUD, RANDOM, ORACLE, ORACLE_MONEY = ("always-edge", "always-cloud", "random", "oracle", "oracle by cost")
"""What every evaluation has beside the routers; the last only where costs are known."""
BASELINES = (EDGE, CLOUD, RANDOM, ORACLE, ORACLE_MONEY)
ORACLES = (ORACLE, ORACLE_MONEY)
"""They know the answers, so that they are on no frontier of routers."""


@dataclass(frozen=True, eq=False)
class Curve:
    """Quality (%, with the ends of its interval) and cost per 1,000 queries (None without costs) at each share of
    ``GRID``, and the score of the last query that is sent there (NaN where none is).
    """

    quality: Floats
    low: Floats
    high: Floats
    cost: Floats | None
    thresholds: Floats


@dataclass(frozen=True, eq=False)
class Result:
    """A router's metrics by name (see ``quality`` and ``overhead``), without those that are not defined, and its curve,
    which a model alone does not have. ``baseline``: it is there in every evaluation.
    """

    name: str
    threshold: float | None
    metrics: Mapping[str, Estimate]
    curve: Curve | None
    baseline: bool = False


@dataclass(frozen=True)
class Difference:
    """``first`` minus ``second``. ``metric`` is ``apgr``, or ``quality`` (points of 100) when the part ``level`` of the
    cost has been spent on either; ``axis`` says which cost, ``share`` of the queries or ``money``.
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
    ``models``: the names, from the cheapest to the dearest, where routers choose from a pool (see ``pool``).
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


def evaluate(sides: Sides, routers: Sequence[Scored], *, resamples: int = RESAMPLES, seed: int = SEED) -> Evaluation:
    """``sides``: qualities from 0 to 1; ``routers``: their scores on the same queries, their names all different."""
    known = [_Routed(router, sides) for router in (*_baselines(sides), *routers)]
    return measured(known, len(sides), resamples=resamples, seed=seed)


def measured(
    known: Sequence[Candidate], queries: int, *, resamples: int, seed: int, models: Sequence[str] = ()
) -> Evaluation:
    """What all of these come to on the same draws. One of them is named ``RANDOM``."""
    _add_distances(known, [candidate.values for candidate in known])
    for weights in draws(queries, resamples, seed):
        _add_distances(known, [candidate.draw(weights) for candidate in known])
    compared = [candidate for candidate in known if not candidate.baseline]
    random = next(candidate for candidate in known if candidate.router.name == RANDOM)
    pairs = [*((candidate, random) for candidate in compared), *itertools.combinations(compared, 2)]
    return Evaluation(
        queries=queries,
        resamples=resamples,
        seed=seed,
        results=[candidate.result() for candidate in known],
        differences=[item for pair in pairs for item in _compare(*pair)],
        models=models,
    )


def _baselines(sides: Sides) -> list[Scored]:
    """Random routing is told at one half. An oracle sends what gains; by money, what gains most for it first."""
    none, gain, extra = np.zeros(len(sides)), sides.gain, sides.extra
    better = (gain > 0).astype(np.float64)
    found = [Scored(EDGE, none, none), Scored(CLOUD, none, none + 1.0), Scored(RANDOM, none, none + 0.5)]
    found.append(Scored(ORACLE, gain, better))
    if extra is not None:
        found.append(Scored(ORACLE_MONEY, gain / np.maximum(extra, 1e-9 * extra.max()), better))
    return found


class Candidate(ABC):
    """A router, its values on the queries as they are, and those in each draw so far."""

    def __init__(self, router: Scored, ranking: Ranking, queries: int, baseline: bool) -> None:
        self.router, self.ranking, self.baseline = router, ranking, baseline
        self._coarse = ranking.coarse(STEPS)
        self.values = self._measure(ranking, np.ones((1, queries)))
        self._drawn: list[Values] = []

    def draw(self, weights: Floats) -> Values:
        self._drawn.append(self._measure(self._coarse, weights))
        return self._drawn[-1]

    @abstractmethod
    def _measure(self, ranking: Ranking, weights: Floats) -> Values:
        """The metrics, [draws], and what is said of the curve: names that begin with ``@``, [draws, levels]."""

    @abstractmethod
    def _curve(self) -> Curve | None:
        """The curve on the queries as they are."""

    def drawn(self, name: str) -> Floats:
        return np.concatenate([block[name] for block in self._drawn])

    def result(self) -> Result:
        names = [name for name in self.values if not name.startswith("@") and np.isfinite(self.values[name][0])]
        metrics = {name: estimate(float(self.values[name][0]), self.drawn(name)) for name in names}
        metrics |= overhead(self.router.seconds)
        return Result(self.router.name, self.router.threshold, metrics, self._curve(), self.baseline)


def at_levels(path: DrawnCurves, start: Floats, axes: Mapping[str, Floats | None]) -> Values:
    """The curve at the levels of each axis, as the names that begin with ``@`` tell it: in % at ``GRID`` and, for
    comparisons, at ``LEVELS``, and normalised by both ends. ``start``: the quality where the curve begins, [draws].
    """
    total = np.where(path.total > ROUNDING, path.total, np.nan)[:, None]
    values = {}
    for name, axis in axes.items():
        if axis is not None:
            gained = path.at(axis, GRID)
            values[f"@{name} grid"] = 100.0 * (start[:, None] + gained)
            values[f"@{name}"] = values[f"@{name} grid"][:, np.rint(100 * LEVELS).astype(np.intp)]
            values[f"@{name} normalised"] = gained / total
    return values


class _Routed(Candidate):
    """A router between two models."""

    def __init__(self, router: Scored, sides: Sides) -> None:
        self.sides, self._tally = sides, Tally(router, sides)
        self._gain, self._extra = sides.gain, sides.extra
        super().__init__(router, Ranking(router.scores), len(sides), router.name in BASELINES)

    def _measure(self, ranking: Ranking, weights: Floats) -> Values:
        values = self._tally(weights)
        edge = values.pop("edge")
        if self.router.name in (EDGE, CLOUD):
            return values
        path = DrawnCurves.of(ranking, weights, self._gain, self._extra)
        return values | over_thresholds(path, edge) | at_levels(path, edge, {"share": path.share, "money": path.money})

    def _curve(self) -> Curve | None:
        if "@share grid" not in self.values:
            return None
        low, high = intervals(self.drawn("@share grid"))
        return Curve(self.values["@share grid"][0], low, high, self._costs(), self._thresholds())

    def _costs(self) -> Floats | None:
        if self.sides.cloud_cost is None:
            return None
        ours = np.zeros(len(self.sides)) if self.sides.edge_cost is None else self.sides.edge_cost
        # Spent money moves along the curve as quality does.
        spent = DrawnCurves.of(self.ranking, np.ones((1, len(self.sides))), self.sides.cloud_cost - ours, None)
        return 1000.0 * (ours.mean() + spent.at(spent.share, GRID)[0])

    def _thresholds(self) -> Floats:
        place = np.ceil(GRID * len(self.sides) - 1e-9).astype(np.intp) - 1
        scores = self.router.scores[self.ranking.order]
        return np.where(place < 0, np.nan, scores[place.clip(min=0)])


def _add_distances(known: Sequence[Candidate], measured: Sequence[Values]) -> None:
    """``measured``: what each candidate has come to in the same draws; those that can be on a frontier learn how far
    they are from it.
    """
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
