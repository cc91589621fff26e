"""The quality of a router's scores on queries that both models have answered.

Over all thresholds (none of these needs one):

- ``apgr``: the performance gap recovered, PGR = (quality - edge) / (cloud - edge), averaged over all shares of queries
  sent to the cloud; ``cpt50`` and ``cpt80``: the least share, in %, with a PGR of 50 or 80 % (RouteLLM, arXiv
  2406.18665). Random routing has 0.5, 50 and 80. ``apgr_money`` and so on: the same over the cloud's extra cost.
- ``drop20`` and ``drop40``: what is lost against the cloud alone, in points of 100, when 20 or 40 % of the queries stay
  on the edge (the cost advantage of Hybrid LLM, arXiv 2404.14618), in ``..._relative`` as % of the cloud's quality, in
  ``..._money`` when that part of the cloud's extra cost is saved.
- ``auroc``: probability that a query that the cloud answers better has a higher score than one it does not.

At the router's own threshold: ``share`` of the queries in the cloud (%), ``quality`` (%), ``quality_of_cloud`` (% of
the cloud's), ``pgr``, ``cost`` (per 1,000 queries), and of the decisions, which are right if exactly the queries that
the cloud answers better go there, ``accuracy``, ``precision``, ``recall`` and ``f1``. ``gain_best`` is by how many
% the quality is above that of the better model alone, and ``gap_oracle`` by how many % it is below that of the oracle,
which takes the better answer to each query (Gain@B and Gap@O of LLMRouterBench, arXiv 2601.07206; here all queries
count alike).

``pareto_dist`` and ``pareto_dist_money`` depend on the other routers: see ``pareto``.

``ece`` is the expected calibration error: how far scores, taken as probabilities of what the router was trained to
tell, are from what happens, in ``BINS`` intervals of equal width.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ianvs_specdec.routing.evaluation.curve import ROUNDING, DrawnCurves, Sides
from ianvs_specdec.routing.outcomes.recorded import Floats

Values = dict[str, Floats]
"""Name of a metric -> its value in each draw, NaN where it is not defined."""

PARTS = (0.5, 0.8)
SAVED = (0.2, 0.4)
BINS = 10


@dataclass(frozen=True, eq=False)
class Scored:
    """A router's scores, float64 [queries], and what else is known of it.

    ``sent``: the probability that it sends a query to the cloud by itself, float64 [queries], 0 or 1 where nothing is
    drawn; ``threshold``: from which score on it does, where that is all; ``labels``: what its scores are probabilities
    of, float64 [queries]; ``seconds``: its time for single queries.
    """

    name: str
    scores: Floats
    sent: Floats | None = None
    threshold: float | None = None
    labels: Floats | None = None
    seconds: Floats | None = None

    @classmethod
    def at(cls, name: str, scores: Floats, threshold: float, **known: Floats | None) -> Scored:
        """A router that sends what reaches the threshold."""
        return cls(name, scores, (scores >= threshold).astype(np.float64), threshold, **known)


def over_thresholds(path: DrawnCurves, edge: Floats) -> Values:
    """The metrics that need no threshold. ``edge``: the quality of the edge alone, [draws]."""
    cloud = edge + path.total
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
                values[f"drop{100 * saved:.0f}_relative"] = 100.0 * ratio(drop, cloud)
    return values


class Tally:
    """The metrics that are made of sums over the queries: those at a router's own threshold, and its calibration."""

    def __init__(self, router: Scored, sides: Sides) -> None:
        columns = [np.ones(len(sides)), sides.edge, sides.cloud]
        self._decides, self._priced = router.sent is not None, sides.cloud_cost is not None
        if router.sent is not None:
            better = (sides.gain > 0).astype(np.float64)
            columns += [sides.edge + router.sent * sides.gain, router.sent, better, router.sent * better]
            if sides.cloud_cost is not None:
                ours = np.zeros(len(sides)) if sides.edge_cost is None else sides.edge_cost
                columns.append(ours + router.sent * (sides.cloud_cost - ours))
        self._bins, self._bound = len(columns), np.maximum(sides.edge, sides.cloud)
        self._columns = np.stack([*columns, *_miscalibrated(router)], axis=1)

    def __call__(self, weights: Floats) -> Values:
        """``weights``: [draws, queries]. ``edge`` is the quality of the edge alone, from 0 to 1."""
        sums = (weights @ self._columns).T / weights.sum(axis=1)
        _, edge, cloud = sums[:3]
        values: Values = {"edge": edge}
        if self._decides:
            quality, sent, better, hits = sums[3:7]
            values |= {
                "share": 100.0 * sent,
                "quality": 100.0 * quality,
                "quality_of_cloud": 100.0 * ratio(quality, cloud),
                "pgr": ratio(quality - edge, cloud - edge),
                "gain_best": 100.0 * (ratio(quality, np.maximum(edge, cloud)) - 1.0),
                "gap_oracle": 100.0 * (1.0 - ratio(quality, (weights @ self._bound) / weights.sum(axis=1))),
                "accuracy": 1.0 - (sent + better - 2 * hits),
                "precision": ratio(hits, sent),
                "recall": ratio(hits, better),
                "f1": ratio(2 * hits, np.where(better > ROUNDING, sent + better, 0.0)),
            }
            if self._priced:
                values["cost"] = 1000.0 * sums[7]
        if len(sums) > self._bins:
            values["ece"] = np.abs(sums[self._bins :]).sum(axis=0)
        return values


def _miscalibrated(router: Scored) -> list[Floats]:
    """For each interval of scores a column of score minus label; none where the scores are no probabilities."""
    scores, labels = router.scores, router.labels
    if labels is None or scores.min() < 0 or scores.max() > 1:
        return []
    bins = np.minimum((scores * BINS).astype(np.intp), BINS - 1)
    return [np.where(bins == number, scores - labels, 0.0) for number in range(BINS)]


def ratio(over: Floats, under: Floats) -> Floats:
    """NaN where the denominator is not above 0."""
    return np.divide(over, under, out=np.full(len(over), np.nan), where=under > ROUNDING)
