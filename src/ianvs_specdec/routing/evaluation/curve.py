"""Cost-quality curves of routers: the gain while queries move to the cloud by descending score.

The curve is linear between two scores, the mean over random orders of queries with equal scores. Curves are computed
for several weightings of the queries, [draws, queries]: ones, or the counts of bootstrap draws.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ianvs_specdec.routing.outcomes.recorded import Floats

ROUNDING = 1e-9
"""Tolerance of comparisons of sums."""


class Ranking:
    """The queries by descending score. ``order``: indices; ``starts``: positions in it of each distinct score;
    ``thresholds``: the distinct scores.
    """

    def __init__(self, scores: Floats) -> None:
        self.order: NDArray[np.intp] = np.argsort(-scores, kind="stable")
        falling = scores[self.order]
        self.starts: NDArray[np.intp] = np.concatenate([[0], np.flatnonzero(np.diff(falling)) + 1]).astype(np.intp)
        self.thresholds: Floats = falling[self.starts]

    def coarse(self, most: int) -> Ranking:
        """With about ``most`` distinct scores, by merging neighbouring ones."""
        if len(self.starts) <= most:
            return self
        found = copy.copy(self)
        indices = np.linspace(0, len(self.order), most, endpoint=False).astype(np.intp)
        around = [np.searchsorted(self.starts, indices, side="right") - 1, np.searchsorted(self.starts, indices)]
        chosen = np.unique(np.concatenate(around).clip(max=len(self.starts) - 1))
        found.starts, found.thresholds = self.starts[chosen], self.thresholds[chosen]
        return found

    def sums(self, ordered: Floats) -> Floats:
        """Sums of [draws, queries], in the ranking's order, over the queries of each score: [draws, scores]."""
        return np.add.reduceat(ordered, self.starts, axis=1)


@dataclass(frozen=True, eq=False)
class DrawnCurves:
    """Curves at each distinct score, [draws, scores]: share of the queries (``share``) and of the cloud's extra cost
    (``money``, None without costs), and the mean quality ``gained`` over the edge alone. ``total`` [draws]: gain of the
    cloud. ``counts``, ``hits`` [draws, scores]: queries, and those that the cloud answers better.
    """

    share: Floats
    gained: Floats
    money: Floats | None
    total: Floats
    counts: Floats
    hits: Floats

    @classmethod
    def of(cls, ranking: Ranking, weights: Floats, gain: Floats, extra: Floats | None) -> DrawnCurves:
        """``weights``: [draws, queries], no row all 0; ``gain`` and ``extra`` cost: [queries]."""
        ordered = np.take(weights, ranking.order, axis=1)
        counts = ranking.sums(ordered)
        share, gained = np.cumsum(counts, axis=1), np.cumsum(ranking.sums(ordered * gain[ranking.order]), axis=1)
        gained /= share[:, -1:]
        share /= share[:, -1:].copy()
        money = None
        if extra is not None:
            money = np.cumsum(ranking.sums(ordered * extra[ranking.order]), axis=1)
            money /= np.where(money[:, -1:] > 0, money[:, -1:], np.nan)
        hits = ranking.sums(ordered * (gain > 0)[ranking.order])
        return cls(share, gained, money, gained[:, -1], counts, hits)

    def auroc(self) -> Floats:
        """AUROC for "the cloud answers better", [draws]. NaN if it answers all queries better, or none."""
        misses = self.counts - self.hits
        # For each hit, the misses with a lower score.
        below = misses.sum(axis=1, keepdims=True) - np.cumsum(misses, axis=1)
        won = np.einsum("ij,ij->i", self.hits, below) + np.einsum("ij,ij->i", self.hits, misses) / 2
        pairs = self.hits.sum(axis=1) * misses.sum(axis=1)
        return np.divide(won, pairs, out=np.full(len(won), np.nan), where=pairs > 0)

    def area(self, axis: Floats) -> Floats:
        """Mean of the quality gained over all levels of ``axis`` (``share`` or ``money``), [draws]."""
        # The trapezoidal rule, without a shifted copy of the curve.
        between = np.einsum("ij,ij->i", np.diff(axis, axis=1), self.gained[:, 1:] + self.gained[:, :-1])
        return (axis[:, 0] * self.gained[:, 0] + between) / 2

    def at(self, axis: Floats, levels: Floats) -> Floats:
        """The quality gained at each cost level, [draws, levels]. NaN without a cost."""
        # Queries that are cheaper in the cloud reduce the cost: the first crossing of a level counts.
        rising = axis if (np.diff(axis, axis=1) >= 0).all() else np.maximum.accumulate(axis, axis=1)
        last = axis.shape[1] - 1
        indices = np.stack([np.searchsorted(row, levels - ROUNDING) for row in rising]).clip(max=last)
        found = _between(axis, self.gained, indices, levels[None, :])
        return np.where(np.isnan(axis[:, -1:]), np.nan, found)

    def cost_of(self, axis: Floats, part: float) -> Floats:
        """The lowest cost with ``part`` of the cloud's gain, [draws]. NaN if there is no gain."""
        wanted = (part * self.total)[:, None]
        indices = (self.gained >= wanted - ROUNDING).argmax(axis=1)[:, None]
        return np.where(self.total > ROUNDING, _between(self.gained, axis, indices, wanted)[:, 0], np.nan)


def _between(x: Floats, y: Floats, indices: NDArray[np.intp], wanted: Floats) -> Floats:
    """Interpolate ``y`` at ``x = wanted`` on the segment that ends at each of ``indices``, [draws, indices]."""
    before = (indices - 1).clip(min=0)
    x_before, y_before = (np.where(indices > 0, np.take_along_axis(v, before, axis=1), 0.0) for v in (x, y))
    width = np.take_along_axis(x, indices, axis=1) - x_before
    part = np.divide(wanted - x_before, width, out=np.ones_like(width), where=np.abs(width) > ROUNDING)
    return y_before + part.clip(0.0, 1.0) * (np.take_along_axis(y, indices, axis=1) - y_before)
