"""Spending a budget on the queries of a stream that deserve it most, never exceeding it in any window.

Each query may be granted its cost. Two rules hold at any time, and no estimate can break them: what is granted to
``window`` successive queries is at most ``window * (allowance + tolerance)``; and what is granted from the first query
on is at most the allowance of all queries so far, plus ``window * tolerance``. (Before the first query a window is
imagined that was spent evenly, so that the beginning is not a feast.)

Within them, rank decides: a query is granted its cost if it is among as many of the best recent ones as the next half
window can afford. As that depends on what is left, the threshold rises when much was spent and falls when little was;
as it is a quantile of recent ranks, it follows a drift of the scores. Equal ranks take their share in turn.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import deque
from itertools import islice

MEMORY = 2
"""So many windows of ranks are remembered."""

BEHIND = (1.5, 2.5)
"""When less was spent in a window than the budget permits, by so many standard deviations, rank begins to count for
less, and for nothing.
"""


class Spending:
    """``allowance`` and ``tolerance`` are per query, in the unit of the costs; the unit of one query is 1 where the
    number of queries is what is limited. Not thread-safe."""

    def __init__(self, allowance: float, *, tolerance: float, window: int) -> None:
        self.window, self.count = window, 0
        self._allowance, self._tolerance = allowance, tolerance
        self._limit = window * (allowance + tolerance) * (1 + 1e-12)
        self._left = window * tolerance * (1 + 1e-12)
        self._granted = deque([allowance] * window, maxlen=window)
        self._used = sum(self._granted)
        self._horizon = max(1, window // 2)
        self._order: deque[tuple[float, float]] = deque()
        self._ranks: list[float] = []
        self._costs: list[float] = []
        self._turn = 0.0

    def expect(self, rank: float, cost: float = 1.0) -> None:
        """Take a rank into account that a query has, or may have before queries have told theirs."""
        self._order.append((rank, cost))
        place = bisect_right(self._ranks, rank)
        self._ranks.insert(place, rank)
        self._costs.insert(place, cost)
        if len(self._order) > MEMORY * self.window:
            old, paid = self._order.popleft()
            place = self._costs.index(paid, bisect_left(self._ranks, old))
            del self._ranks[place], self._costs[place]

    def request(self, rank: float, cost: float) -> tuple[bool, str]:
        """Whether the next query, of this rank, is granted its cost, and why not. A negative rank asks for nothing."""
        self.count += 1
        self._used -= self._granted[0]
        # What was not spent can be spent later, as far as the window lets it.
        self._left = min(self._left + self._allowance, self.window * (self._allowance + self._tolerance))
        self.expect(rank, cost)
        why = ""
        if rank < 0:
            why = "not asked for"
        elif not self._deserves(rank):
            why = "others need it more"
        elif cost > self._left or self._used + cost > self._limit:
            why = "spent"
        amount = 0.0 if why else cost
        self._granted.append(amount)
        self._used += amount
        self._left -= amount
        return not why, why

    def correct(self, index: int, amount: float) -> None:
        """The query that was the ``index``-th (from 1) cost so much more than it was granted, or less."""
        self._left -= amount
        place = index - self.count + len(self._granted) - 1
        if place >= 0:
            self._granted[place] += amount
            self._used += amount

    def _deserves(self, rank: float) -> bool:
        first, end = bisect_left(self._ranks, rank), bisect_right(self._ranks, rank)
        number = len(self._ranks)
        above, equal = sum(self._costs[end:]) / number, sum(self._costs[first:end]) / number
        rate = self._affordable()
        # Where every rank is below the ones before it, none is among the best: what is not spent would be lost.
        rate += self._slack() * (above + equal)
        share = (rate - above) / equal if equal else 1.0
        if share >= 1 - 1e-9:
            return True
        self._turn += max(0.0, share)
        if self._turn < 1:
            return False
        self._turn -= 1
        return True

    def _affordable(self) -> float:
        """What each of the next queries can be granted on average."""
        ahead = self._horizon
        leaving = sum(islice(self._granted, 1, ahead))
        return min(self._left + (ahead - 1) * self._allowance, self._limit - self._used + leaving) / ahead

    def _slack(self) -> float:
        """How far, from 0 to 1, the window is behind the budget: beyond what chance makes of independent queries."""
        due, cost = self.window * self._allowance, sum(self._costs) / len(self._costs)
        chance = math.sqrt(max(due * (cost - self._allowance), cost * cost))
        if not chance:
            # Queries that cost nothing are never behind.
            return 0.0
        low, high = BEHIND
        return min(1.0, max(0.0, ((due - self._used) / chance - low) / (high - low)))
