"""Cost-quality curves: accuracy against cloud cost of each router at every threshold, of random routing and the oracle.

They cover the queries that both models have answered, in any test case.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ianvs_specdec.routing.evaluation.bootstrap import RESAMPLES, SEED
from ianvs_specdec.routing.evaluation.curve import DrawnCurves, Ranking
from ianvs_specdec.routing.evaluation.metrics import RouterScores
from ianvs_specdec.routing.evaluation.results import Result, evaluate
from ianvs_specdec.routing.outcomes.recorded import Floats, Sides
from ianvs_specdec.workspace.cases import Dataset
from ianvs_specdec.workspace.sides import SideAnswer, score

POINTS = 200
"""Maximum number of points of a curve."""

METRICS = ("apgr", "cpt50", "cpt80", "auroc", "pareto_dist")

NOISE = 1e-4
"""Scores that differ by less than this share of their range count as equal: confidences are sums of float32 logarithms,
whose last digits depend on the number of tokens verified at once."""

Point = tuple[float, float | None, float]
"""Share of queries sent to the cloud (%), cost of 1,000 queries (None without prices), accuracy."""


@dataclass(frozen=True)
class Outcome:
    """One side's answer to one query: score (0-100) and cost (None without prices)."""

    score: float
    cost: float | None


def outcomes(both: Mapping[int, tuple[SideAnswer, SideAnswer]], dataset: Dataset) -> dict[int, tuple[Outcome, Outcome]]:
    """Both sides' outcomes of the queries that both have a score of."""
    found = {}
    for index, answers in both.items():
        edge, cloud = (_outcome(answer, dataset, index) for answer in answers)
        if edge is not None and cloud is not None:
            found[index] = edge, cloud
    return found


def _outcome(answer: SideAnswer, dataset: Dataset, index: int) -> Outcome | None:
    value = answer.score
    if value is None:
        value = score(dataset.queries[index].scorer, answer.texts, dataset.golds[index])
    return None if value is None else Outcome(value, answer.cost)


@dataclass
class _Scores:
    """Scores of a router, and their test cases."""

    router: str
    values: Floats
    cases: list[int]

    def same(self, router: str, values: Floats) -> bool:
        return router == self.router and float(np.abs(values - self.values).max()) <= NOISE * float(np.ptp(self.values))


def curves(both: Mapping[int, tuple[Outcome, Outcome]], routers: Iterable[tuple[int, str, Mapping[int, float]]]) -> Any:
    """Random routing (``ends``), the oracle (``bound``) and the routers' curves, from all queries on the edge to all in
    the cloud, with ``METRICS`` (None if undefined) and their 95 % ``intervals``; None for fewer than two queries.

    ``routers``: number of the test case, name, and score per query. A router has one curve, or several if its test
    cases gave different scores. ``without``: test cases without a curve, and the reason.
    """
    if len(both) < 2:
        return None
    edge = np.array([pair[0].score for pair in both.values()])
    cloud = np.array([pair[1].score for pair in both.values()])
    prices = [pair[1].cost for pair in both.values()]
    cost = None if None in prices else np.array(prices, dtype=np.float64)
    sides = Sides(edge / 100.0, cloud / 100.0, None, cost)
    found, without = _distinct(list(both), routers)
    best = sides.gain if cost is None else sides.gain / np.maximum(cost, 1e-12)
    ends = _sweep(np.zeros(len(both)), sides)
    return {
        "queries": len(both),
        "ends": ends,
        "bound": _sweep(best, sides),
        "curves": _measured(found, sides),
        "without": without,
    }


def _distinct(
    queries: list[int], routers: Iterable[tuple[int, str, Mapping[int, float]]]
) -> tuple[list[_Scores], list[dict[str, Any]]]:
    """The distinct scores, and the test cases without a curve."""
    found: list[_Scores] = []
    without: list[dict[str, Any]] = []
    for case, name, given in routers:
        scores = np.array([given.get(index, np.nan) for index in queries])
        missing = int(np.isnan(scores).sum())
        if missing or len(np.unique(scores)) < 2:
            reason = f"no score for {missing} of the {len(queries)} queries" if missing else "one score for all queries"
            without.append({"router": name, "case": case, "reason": reason})
            continue
        known = next((one for one in found if one.same(name, scores)), None)
        if known is None:
            found.append(_Scores(name, scores, [case]))
        else:
            known.cases.append(case)
    return found, without


def _measured(found: list[_Scores], sides: Sides) -> list[dict[str, Any]]:
    """Points and metrics of each curve, computed once for equal scores."""
    distinct = {tuple(one.values): one.values for one in found}
    # Names may repeat: numbers identify the scores.
    scored = [RouterScores(str(number), values) for number, values in enumerate(distinct.values())]
    results = {result.name: result for result in evaluate(sides, scored, resamples=RESAMPLES, seed=SEED).results}
    known = {
        key: {"points": _sweep(values, sides), **_quality(results[str(number)])}
        for number, (key, values) in enumerate(distinct.items())
    }
    return [{"router": one.router, "cases": one.cases, **known[tuple(one.values)]} for one in found]


def _sweep(scores: Floats, sides: Sides) -> list[Point]:
    """Points of the curve while queries move to the cloud, highest scores first."""
    ranking, edge = Ranking(scores), 100.0 * float(sides.edge.mean())
    path = DrawnCurves.of(ranking, np.ones((1, len(sides))), sides.gain, None)
    share, accuracy = (np.concatenate([[0.0], column[0]]) for column in (path.share, path.gained))
    spent = None
    if sides.cloud_cost is not None:
        after = np.cumsum(np.add.reduceat(sides.cloud_cost[ranking.order], ranking.starts))
        spent = np.concatenate([[0.0], 1000.0 * after / len(sides)])
    places = np.arange(len(share))
    if len(places) > POINTS:
        places = np.unique(np.linspace(0, len(share) - 1, POINTS).astype(np.intp))
    return [
        (_short(100.0 * share[i]), None if spent is None else _short(spent[i]), _short(edge + 100.0 * accuracy[i]))
        for i in places
    ]


def _quality(result: Result) -> dict[str, Any]:
    known = {name: result.metrics.get(name) for name in METRICS}
    ends = {name: [one.low, one.high] for name, one in known.items() if one is not None and math.isfinite(one.low)}
    return {
        **{name: None if one is None else _short(one.value) for name, one in known.items()},
        "intervals": {name: [_short(low), _short(high)] for name, (low, high) in ends.items()},
    }


def _short(value: float) -> float:
    return float(f"{value:.6g}")
