"""The cost-quality curve of a router: what is gained while the queries move to the cloud, highest scores first.

Queries of equal score are taken in random order among themselves: on average the curve is straight between two scores.
Everything is computed for many weightings of the queries at once, [draws, queries]: ones for the queries as they are,
counts for the draws of a bootstrap. So an interval is of exactly what the number beside it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ianvs_specdec.routing.outcomes import Floats

ROUNDING = 1e-9
"""Sums that differ by less are equal."""


@dataclass(frozen=True, eq=False)
class Sides:
    """What both models made of the same queries: quality (in any unit) and cost, float64 [queries] each.

    Without a cloud cost there is no money to speak of; without an edge cost the edge is taken to cost nothing.
    """

    edge: Floats
    cloud: Floats
    edge_cost: Floats | None = None
    cloud_cost: Floats | None = None

    def __len__(self) -> int:
        return len(self.edge)

    @property
    def gain(self) -> Floats:
        return self.cloud - self.edge

    @property
    def extra(self) -> Floats | None:
        """What the cloud costs more than the edge; None where that is not known, or nothing on the whole."""
        if self.cloud_cost is None:
            return None
        extra = self.cloud_cost if self.edge_cost is None else self.cloud_cost - self.edge_cost
        return extra if extra.sum() > 0 else None


class Ranking:
    """The queries by falling score, those of equal score together."""

    def __init__(self, scores: Floats) -> None:
        self.order: NDArray[np.intp] = np.argsort(-scores, kind="stable")
        falling = scores[self.order]
        self.starts: NDArray[np.intp] = np.concatenate([[0], np.flatnonzero(np.diff(falling)) + 1]).astype(np.intp)
        self.thresholds: Floats = falling[self.starts]
        """The different scores, falling."""

    def sums(self, ordered: Floats) -> Floats:
        """[draws, queries] in the ranking's order -> their sums over the queries of each score, [draws, scores]."""
        if len(self.starts) == ordered.shape[1]:
            return ordered
        return np.add.reduceat(ordered, self.starts, axis=1)


@dataclass(frozen=True, eq=False)
class Path:
    """A curve for several draws. After each score, [draws, scores]: the part of the queries (``share``) and of the
    cloud's extra cost (``money``, None without costs) that is spent, from 0 to 1, and the quality gained over the edge
    alone (``gained``, mean over the queries). Every curve starts at 0; ``total`` [draws] is the gain of the cloud alone.
    """

    share: Floats
    gained: Floats
    money: Floats | None
    total: Floats

    @classmethod
    def of(cls, ranking: Ranking, weights: Floats, gain: Floats, extra: Floats | None) -> Path:
        """``weights``: [draws, queries], none of the rows all 0; ``gain`` and ``extra``: [queries]."""
        ordered = np.take(weights, ranking.order, axis=1)
        count = ordered.sum(axis=1, keepdims=True)
        share = np.cumsum(ranking.sums(ordered), axis=1)
        share /= count
        gained = np.cumsum(ranking.sums(ordered * gain[ranking.order]), axis=1)
        gained /= count
        money = None
        if extra is not None:
            money = np.cumsum(ranking.sums(ordered * extra[ranking.order]), axis=1)
            with np.errstate(divide="ignore", invalid="ignore"):
                money /= np.where(money[:, -1:] > 0, money[:, -1:], np.nan)
        return cls(share, gained, money, gained[:, -1])

    def area(self, axis: Floats) -> Floats:
        """Mean of the quality gained over all levels of ``axis`` (``share`` or ``money``), [draws]."""
        # The trapezium between two scores, without a copy of the curve moved by one.
        between = np.einsum("ij,ij->i", np.diff(axis, axis=1), self.gained[:, 1:] + self.gained[:, :-1])
        return (axis[:, 0] * self.gained[:, 0] + between) / 2

    def at(self, axis: Floats, levels: Floats) -> Floats:
        """The quality gained when a part of the cost has been spent, [draws, levels]."""
        # Where a query costs less in the cloud money is given back: the first time that the level is reached counts.
        rising = axis if (np.diff(axis, axis=1) >= 0).all() else np.maximum.accumulate(axis, axis=1)
        last = axis.shape[1] - 1
        places = np.stack([np.searchsorted(row, levels - ROUNDING) for row in rising]).clip(max=last)
        return _between(axis, self.gained, places, levels[None, :])

    def cost_of(self, axis: Floats, part: float) -> Floats:
        """The least that has to be spent to gain ``part`` of what the cloud alone gains, [draws]; NaN where the cloud
        alone gains nothing.
        """
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
