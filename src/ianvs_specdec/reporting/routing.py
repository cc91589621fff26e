"""Accuracy against cloud cost: what routing between two models could give, and what each router's scores would.

For the queries that both the edge model and the cloud model have answered, in whichever test case, every way of routing
can be worked out: the share of random routers, the best one, and each router at every threshold.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ianvs_specdec.benchmarks.scorers import SCORERS, scorer
from ianvs_specdec.reporting.figures import ASKING
from ianvs_specdec.reporting.journal import KeptAnswers, price
from ianvs_specdec.reporting.workspace import Case, Dataset, Row
from ianvs_specdec.response import Response
from ianvs_specdec.types import Sampling

POINTS = 200
"""A curve has no more points than about this."""

Floats = NDArray[np.float64]
Point = tuple[float, float | None, float]
"""Share of queries sent to the cloud (%), cost of 1,000 queries (None without prices), accuracy."""


@dataclass(frozen=True)
class Outcome:
    """One side's answer to one query: its score (0-100), and what it cost (None without prices)."""

    score: float
    cost: float | None


def side_of(case: Case, side: str) -> str:
    """What determines a side's outputs in a test case: its model and sampling. Lossless back ends do not matter."""
    own = case.module(f"{side}model").get("hyperparameters") or {}
    value = {name: own[name] for name in ("model", *Sampling.names()) if own.get(name) is not None}
    return json.dumps(value, sort_keys=True, default=str) if "model" in value else ""


class Outcomes:
    """The outcomes of all test cases, by data file, side, model and sampling, and query."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str], dict[int, Outcome]] = {}

    def add(self, case: Case, dataset: Dataset, rows: Mapping[int, Row], scores: Mapping[int, float]) -> None:
        """Take down what both sides answered in a test case. ``scores``: of each query's result (0-100), or NaN."""
        for side in ("edge", "cloud"):
            known = self._of(case, side)
            for index, (_, result, edge, cloud) in rows.items():
                response = edge if side == "edge" else cloud
                if response is None or index in known or response.get("lossy") or response.get("error"):
                    continue
                own = response.get("side") == result.get("side")
                score = scores[index] if own else _score(response, dataset.golds[index])
                if score is not None and not math.isnan(score):
                    known[index] = Outcome(score, response.get("cost") if side == "cloud" else 0.0)

    def complete(self, case: Case, dataset: Dataset, kept: KeptAnswers) -> None:
        """Fill in from the journal what no test case holds, such as the answers that an oracle asked for besides."""
        for side in ("edge", "cloud"):
            own = case.module(f"{side}model").get("hyperparameters") or {}
            known, configurations = self._of(case, side), kept.configurations(own)
            for index, query in enumerate(dataset.queries if configurations else ()):
                if index in known:
                    continue
                answers = kept.answers(query, configurations)
                if answers is None or query.scorer in ASKING:
                    continue
                score = scorer(query.scorer)([answer["text"] for answer in answers], dataset.golds[index])
                if score is not None:
                    known[index] = Outcome(score, price(own, answers) if side == "cloud" else 0.0)

    def _of(self, case: Case, side: str) -> dict[int, Outcome]:
        return self._known.setdefault((str(case.config.get("dataset")), side, side_of(case, side)), {})

    def pair(self, case: Case) -> tuple[str, str, str] | None:
        """Data file, edge and cloud of a test case; None where it does not have both."""
        edge, cloud = side_of(case, "edge"), side_of(case, "cloud")
        return (str(case.config.get("dataset")), edge, cloud) if edge and cloud else None

    def both(self, pair: tuple[str, str, str]) -> dict[int, tuple[Outcome, Outcome]]:
        """Per query: the outcomes of the edge and of the cloud, where both are known."""
        data, *sides = pair
        named = zip(("edge", "cloud"), sides, strict=True)
        edge, cloud = (self._known.get((data, name, side), {}) for name, side in named)
        return {index: (edge[index], cloud[index]) for index in sorted(edge.keys() & cloud.keys())}


def _score(response: Response, gold: Any) -> float | None:
    name, answers = str(response.get("scorer", "none")), [turn["completion"] for turn in response.get("turns", ())]
    return scorer(name)(answers, gold) if answers and name in SCORERS and name not in ASKING else None


def curves(both: Mapping[int, tuple[Outcome, Outcome]], routers: Iterable[tuple[int, str, Mapping[int, float]]]) -> Any:
    """What routing gives on these queries: the two ends, the bound, and the routers' curves.

    ``routers``: number of the test case, name, and the router's score per query. Routers that give all queries the same
    score have no curve, and equal scores are drawn once. A curve goes from all queries on the edge to all in the cloud;
    queries of equal score change sides together.
    """
    if len(both) < 2:
        return None
    edge = np.array([pair[0].score for pair in both.values()])
    cloud = np.array([pair[1].score for pair in both.values()])
    prices = [pair[1].cost for pair in both.values()]
    cost = None if None in prices else np.array(prices, dtype=np.float64)
    gain = cloud - edge
    best = gain / np.maximum(cost, 1e-12) if cost is not None else gain
    found: dict[tuple[float, ...], dict[str, Any]] = {}
    for case, name, given in routers:
        scores = np.array([given.get(index, np.nan) for index in both])
        if np.isnan(scores).any() or len(np.unique(scores)) < 2:
            continue
        curve = found.setdefault(tuple(scores), {"router": name, "cases": []})
        if not curve["cases"]:
            curve |= {"points": _sweep(scores, edge, gain, cost), **_quality(scores, gain)}
        curve["cases"].append(case)
    ends = _sweep(np.zeros(len(both)), edge, gain, cost)
    return {"queries": len(both), "ends": ends, "bound": _sweep(best, edge, gain, cost), "curves": list(found.values())}


def _sweep(order: Floats, edge: Floats, gain: Floats, cost: Floats | None) -> list[Point]:
    """Accuracy while the queries move to the cloud, those with the highest ``order`` first."""
    by = np.argsort(-order, kind="stable")
    accuracy = np.concatenate([[edge.mean()], edge.mean() + np.cumsum(gain[by]) / len(edge)])
    spent = None if cost is None else np.concatenate([[0.0], 1000.0 * np.cumsum(cost[by]) / len(edge)])
    last_of_its_score = np.append(np.flatnonzero(np.diff(order[by])) + 1, len(order))
    places = np.concatenate([[0], last_of_its_score])
    if len(places) > POINTS:
        places = places[np.unique(np.linspace(0, len(places) - 1, POINTS).astype(np.intp))]
    return [
        (_short(100.0 * i / len(edge)), None if spent is None else _short(spent[i]), _short(accuracy[i]))
        for i in places
    ]


def _quality(scores: Floats, gain: Floats) -> dict[str, float | None]:
    """``auroc``: how well the scores tell the queries that the cloud answers better. ``apgr`` (RouteLLM, arXiv
    2406.18665): the mean share of the cloud's advantage that is kept over all shares of queries sent there; 0.5 is
    random.
    """
    positive, negative = scores[gain > 0], scores[gain <= 0]
    auroc = None
    if len(positive) and len(negative):
        below = np.searchsorted(np.sort(negative), positive, side="left")
        through = np.searchsorted(np.sort(negative), positive, side="right")
        auroc = _short(float((below + through).sum()) / (2 * len(positive) * len(negative)))
    total = float(gain.sum())
    if total <= 0:
        return {"auroc": auroc, "apgr": None}
    # Queries of equal score are drawn at random among themselves: the curve is straight between two scores.
    kept = np.array([(p[0] / 100.0, p[2]) for p in _sweep(scores, np.zeros_like(gain), gain, None)])
    area = float(np.sum(np.diff(kept[:, 0]) * (kept[1:, 1] + kept[:-1, 1]) / 2)) / (total / len(gain))
    return {"auroc": auroc, "apgr": _short(area)}


def _short(value: float) -> float:
    return float(f"{value:.6g}")


def scores_of(rows: Mapping[int, Row]) -> tuple[str, dict[int, float]]:
    """The router's name and its score for each query of a test case."""
    name, scores = "", {}
    for index, row in rows.items():
        decision = row[1].get("routing") or {}
        if isinstance(decision.get("score"), (int, float)):
            name, scores[index] = str(decision.get("router", "")), float(decision["score"])
    return name, scores
