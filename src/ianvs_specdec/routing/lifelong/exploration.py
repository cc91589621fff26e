"""How many decisions are turned round to learn what the other model would have answered: more where it is not known.

A share of them everywhere, ``BOOST`` times that share in a group in which little is known of the other model's answers,
or where answers have lately been worth something else than before: a fast and a slow moving average of the residuals
differ.
"""

from __future__ import annotations

from dataclasses import dataclass

BOOST = 6.0
MOST = 0.5
FEW = 10
"""With fewer feedbacks from a group than this, little is known of a model's answers there."""
FAST, SLOW = 0.1, 0.02
DIFFERENT = 0.2
"""About twice the standard deviation of the fast average of right and wrong answers."""


@dataclass
class _Average:
    fast: float = 0.0
    slow: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        self.count += 1
        # At first the plain mean.
        self.fast += max(FAST, 1 / self.count) * (value - self.fast)
        self.slow += max(SLOW, 1 / self.count) * (value - self.slow)


class Exploration:
    """``share``: of the decisions, where nothing calls for more."""

    def __init__(self, share: float) -> None:
        self.share = share
        self._averages: dict[tuple[str, int], _Average] = {}

    def observe(self, group: str, side: int, residual: float) -> None:
        """``residual``: what an answer was worth beyond what was expected by its query's score."""
        self._averages.setdefault((group, side), _Average()).add(residual)

    def of(self, group: str, side: int) -> float:
        """The probability with which a query of the group goes to ``side``, though it is the other one's."""
        known = [found for either in (0, 1) if (found := self._averages.get((group, either)))]
        own = self._averages.get((group, side))
        new = own is None or own.count < FEW
        changed = any(abs(average.fast - average.slow) > DIFFERENT for average in known)
        return min(MOST, self.share * (BOOST if new or changed else 1.0))
