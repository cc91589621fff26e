"""The quality of routing between models that have answered the same queries.

Over all thresholds:

- ``apgr``: PGR = (quality - edge) / (cloud - edge), averaged over all shares of queries sent to the cloud; ``cpt50``,
  ``cpt80``: the least share, in %, with a PGR of 50 or 80 % (RouteLLM, arXiv 2406.18665). ``..._money``: the same over
  the cloud's extra cost.
- ``drop20``, ``drop40``: quality lost against the cloud alone, in points of 100, when 20 or 40 % of the queries stay on
  the edge (Hybrid LLM, arXiv 2404.14618); ``..._relative``: in % of the cloud's; ``..._money``: when that part of the
  cloud's extra cost is saved.
- ``auroc``: probability that a query that the cloud answers better has a higher score than one it does not.

Of a router's own decisions: ``share`` in the cloud (%), ``quality`` (%), ``quality_of_cloud`` (% of the cloud's),
``pgr``, ``cost`` (per 1,000 queries); ``accuracy``, ``precision``, ``recall``, ``f1`` of sending what the cloud answers
better; ``gain_best``: % above the better model alone, ``gap_oracle``: % below the oracle (LLMRouterBench, arXiv
2601.07206, here with equal weight for all queries); ``ece``: expected calibration error of the scores as probabilities
of the training label, in ``BINS`` intervals of equal width.

Of a pool only the figures over money are defined, and ``share:NAME``. For ``pareto_dist`` see
``results.mean_distances``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from ianvs_specdec.routing.evaluation.bootstrap import Estimate
from ianvs_specdec.routing.evaluation.curve import ROUNDING, DrawnCurves
from ianvs_specdec.routing.outcomes.recorded import Floats

Values = dict[str, Floats]
"""Name of a metric -> its value in each draw, NaN where it is not defined."""

PARTS = (0.5, 0.8)
SAVED = (0.2, 0.4)
BINS = 10


class Answers(Protocol):
    """``quality`` [queries, models] of the models' answers and their ``cost`` (None: unknown), the cheapest model
    first. ``is_pair``: an edge and a cloud, between which the share of queries is a cost of its own.
    """

    @property
    def quality(self) -> Floats: ...
    @property
    def cost(self) -> Floats | None: ...
    @property
    def models(self) -> tuple[str, ...]: ...
    @property
    def is_pair(self) -> bool: ...
    def __len__(self) -> int: ...


@dataclass(frozen=True, eq=False)
class RouterScores:
    """``scores``: float64 [queries], or the expected quality of each model of a pool, [queries, models]; ``sent``: the
    probability that it sends a query to the cloud, float64 [queries]; ``labels``: what its scores are probabilities of,
    float64 [queries]; ``seconds``: its time for single queries; ``reworded``: see ``robustness``.
    """

    name: str
    scores: Floats
    sent: Floats | None = None
    threshold: float | None = None
    labels: Floats | None = None
    seconds: Floats | None = None
    reworded: Mapping[str, Estimate] = field(default_factory=dict)

    @classmethod
    def at_threshold(cls, name: str, scores: Floats, threshold: float, **known: Any) -> RouterScores:
        """A router that sends what reaches the threshold."""
        return cls(name, scores, (scores >= threshold).astype(np.float64), threshold, **known)


def extra_cost(answers: Answers) -> Floats | None:
    """The cost of each model beyond that of the cheaper one before it, [queries, models - 1]; None if unknown, or not
    positive in total.
    """
    if answers.cost is None:
        return None
    extra = np.diff(answers.cost, axis=1)
    return extra if extra.sum() > 0 else None


def over_thresholds(path: DrawnCurves, start: Floats) -> Values:
    """The metrics that need no threshold. ``start``: the quality of the cheapest model alone, [draws]."""
    values: Values = {"auroc": path.auroc()}
    for suffix, axis in (("", path.share), ("_money", path.money)):
        if axis is None:
            continue
        values[f"apgr{suffix}"] = ratio(path.area(axis), path.total)
        for part in PARTS:
            values[f"cpt{100 * part:.0f}{suffix}"] = 100.0 * path.cost_of(axis, part)
        gained = path.at(axis, 1.0 - np.array(SAVED))
        for index, saved in enumerate(SAVED):
            drop = path.total - gained[:, index]
            values[f"drop{100 * saved:.0f}{suffix}"] = 100.0 * drop
            if axis is path.share:
                values[f"drop{100 * saved:.0f}_relative"] = 100.0 * ratio(drop, start + path.total)
    return values


class Tally:
    """The metrics that are sums over the queries. ``chosen``: with which probability the router asks each model,
    float64 [queries, models], or None where that is not known.
    """

    def __init__(self, router: RouterScores, chosen: Floats | None, answers: Answers) -> None:
        quality, self._models = answers.quality, answers.models
        self._pair, self._decides = answers.is_pair, chosen is not None
        columns = {"best": quality.max(axis=1)}
        if chosen is not None:
            columns |= {share_of(name): part for name, part in zip(self._models, chosen.T, strict=True)}
            columns["asked"] = (chosen * quality).sum(axis=1)
            if answers.cost is not None:
                columns["cost"] = (chosen * answers.cost).sum(axis=1)
            if self._pair:
                better = (quality[:, 1] > quality[:, 0]).astype(np.float64)
                columns |= {"sent": chosen[:, 1], "better": better, "hits": chosen[:, 1] * better}
        self._names, bins = tuple(columns), _miscalibrated(router)
        self._columns = np.stack([*quality.T, *columns.values(), *bins], axis=1)

    def __call__(self, weights: Floats) -> tuple[Floats, Values]:
        """``weights``: [draws, queries]. The quality of each model alone, [models, draws], and the metrics."""
        sums = (weights @ self._columns).T / weights.sum(axis=1)
        alone, rest = np.split(sums, [len(self._models)])
        known = dict(zip(self._names, rest, strict=False))
        values = self._decided(alone, known) if self._decides else {}
        if len(bins := rest[len(self._names) :]):
            values["ece"] = np.abs(bins).sum(axis=0)
        return alone, values

    def _decided(self, alone: Floats, known: Mapping[str, Floats]) -> Values:
        quality = known["asked"]
        values = {
            "quality": 100.0 * quality,
            "pgr": ratio(quality - alone[0], alone[-1] - alone[0]),
            "gain_best": 100.0 * (ratio(quality, alone.max(axis=0)) - 1.0),
            "gap_oracle": 100.0 * (1.0 - ratio(quality, known["best"])),
        }
        if "cost" in known:
            values["cost"] = 1000.0 * known["cost"]
        if not self._pair:
            return values | {name: 100.0 * known[name] for name in map(share_of, self._models)}
        sent, better, hits = known["sent"], known["better"], known["hits"]
        return values | {
            "share": 100.0 * sent,
            "quality_of_cloud": 100.0 * ratio(quality, alone[1]),
            "accuracy": 1.0 - (sent + better - 2 * hits),
            "precision": ratio(hits, sent),
            "recall": ratio(hits, better),
            "f1": ratio(2 * hits, np.where(better > ROUNDING, sent + better, 0.0)),
        }


def share_of(model: str) -> str:
    """The metric that is the share of the queries (%) of this model."""
    return f"share:{model}"


def _miscalibrated(router: RouterScores) -> list[Floats]:
    """For each interval of scores a column of score minus label; none where the scores are no probabilities."""
    scores, labels = router.scores, router.labels
    if labels is None or scores.min() < 0 or scores.max() > 1:
        return []
    bins = np.minimum((scores * BINS).astype(np.intp), BINS - 1)
    return [np.where(bins == number, scores - labels, 0.0) for number in range(BINS)]


def ratio(over: Floats, under: Floats) -> Floats:
    """NaN where the denominator is not above 0."""
    return np.divide(over, under, out=np.full(len(over), np.nan), where=under > ROUNDING)
