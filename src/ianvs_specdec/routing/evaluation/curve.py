"""The cost-quality curve of a router: the gain while the queries move to the cloud, highest scores first.

Queries of equal score are in random order: on average the curve is straight between two scores. Everything is computed
for many weightings of the queries at once, [draws, queries]: ones, or counts for the draws of a bootstrap.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ianvs_specdec.routing.outcomes.recorded import Floats

ROUNDING = 1e-9
"""Sums that differ by less are equal."""


class Ranking:
    """The queries by falling score, those of equal score together.

    ``order``: their indices; ``starts``: the places in it at which a score begins; ``thresholds``: these scores.
    """

    def __init__(self, scores: Floats) -> None:
        self.order: NDArray[np.intp] = np.argsort(-scores, kind="stable")
        falling = scores[self.order]
        self.starts: NDArray[np.intp] = np.concatenate([[0], np.flatnonzero(np.diff(falling)) + 1]).astype(np.intp)
        self.thresholds: Floats = falling[self.starts]

    def coarse(self, most: int) -> Ranking:
        """With about ``most`` different scores: those of neighbouring ranks are taken together."""
        if len(self.starts) <= most:
            return self
        found = copy.copy(self)
        places = np.linspace(0, len(self.order), most, endpoint=False).astype(np.intp)
        around = [np.searchsorted(self.starts, places, side="right") - 1, np.searchsorted(self.starts, places)]
        chosen = np.unique(np.concatenate(around).clip(max=len(self.starts) - 1))
        found.starts, found.thresholds = self.starts[chosen], self.thresholds[chosen]
        return found

    def sums(self, ordered: Floats) -> Floats:
        """[draws, queries] in the ranking's order -> their sums over the queries of each score, [draws, scores]."""
        return np.add.reduceat(ordered, self.starts, axis=1)


@dataclass(frozen=True, eq=False)
class DrawnCurves:
    """After each score, [draws, scores]: the parts of the queries (``share``) and of the cloud's extra cost (``money``,
    None without costs) that are spent, and the mean quality ``gained`` over the edge alone. ``total`` [draws]: the
    cloud's gain. ``counts`` and ``hits`` [draws, scores]: queries, and those that the cloud answers better.
    """

    share: Floats
    gained: Floats
    money: Floats | None
    total: Floats
    counts: Floats
    hits: Floats

    @classmethod
    def of(cls, ranking: Ranking, weights: Floats, gain: Floats, extra: Floats | None) -> DrawnCurves:
        """``weights``: [draws, queries], none of the rows all 0; ``gain`` and ``extra``: [queries]."""
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
        """Of "the cloud answers better", [draws]: equal scores count half. NaN where it answers all better, or none."""
        misses = self.counts - self.hits
        # Of a hit, the misses that have a lower score.
        below = misses.sum(axis=1, keepdims=True) - np.cumsum(misses, axis=1)
        won = np.einsum("ij,ij->i", self.hits, below) + np.einsum("ij,ij->i", self.hits, misses) / 2
        pairs = self.hits.sum(axis=1) * misses.sum(axis=1)
        return np.divide(won, pairs, out=np.full(len(won), np.nan), where=pairs > 0)

    def area(self, axis: Floats) -> Floats:
        """Mean of the quality gained over all levels of ``axis`` (``share`` or ``money``), [draws]."""
        # The trapezium between two scores, without a copy of the curve moved by one.
        between = np.einsum("ij,ij->i", np.diff(axis, axis=1), self.gained[:, 1:] + self.gained[:, :-1])
        return (axis[:, 0] * self.gained[:, 0] + between) / 2

    def at(self, axis: Floats, levels: Floats) -> Floats:
        """The quality gained when a part of the cost has been spent, [draws, levels]; NaN where there is no cost."""
        # Where a query costs less in the cloud money is given back: the first time that the level is reached counts.
        rising = axis if (np.diff(axis, axis=1) >= 0).all() else np.maximum.accumulate(axis, axis=1)
        last = axis.shape[1] - 1
        places = np.stack([np.searchsorted(row, levels - ROUNDING) for row in rising]).clip(max=last)
        found = _between(axis, self.gained, places, levels[None, :])
        return np.where(np.isnan(axis[:, -1:]), np.nan, found)

    def cost_of(self, axis: Floats, part: float) -> Floats:
        """The least cost at which ``part`` of the cloud's gain is reached, [draws]; NaN where that is nothing."""
        wanted = (part * self.total)[:, None]
        places = (self.gained >= wanted - ROUNDING).argmax(axis=1)[:, None]
        return np.where(self.total > ROUNDING, _between(self.gained, axis, places, wanted)[:, 0], np.nan)


def _between(x: Floats, y: Floats, places: NDArray[np.intp], wanted: Floats) -> Floats:
    """``y`` where ``x`` is ``wanted``, on the straight line that ends at each of ``places``, [draws, places]."""
    before = (places - 1).clip(min=0)
    x_before, y_before = (np.where(places > 0, np.take_along_axis(v, before, axis=1), 0.0) for v in (x, y))
    width = np.take_along_axis(x, places, axis=1) - x_before
    part = np.divide(wanted - x_before, width, out=np.ones_like(width), where=np.abs(width) > ROUNDING)
    return y_before + part.clip(0.0, 1.0) * (np.take_along_axis(y, places, axis=1) - y_before)
