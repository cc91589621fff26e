"""BudgetRouter: the cloud for the queries that need it most, within a share of the queries or a sum of money."""

from __future__ import annotations

import itertools
import math
import threading
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any

from pydantic import Field

from ianvs_specdec.benchmarks.rows import query_of_row, row_of
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.settings import Share
from ianvs_specdec.common.types import Query
from ianvs_specdec.plugin import observers
from ianvs_specdec.routing.routers.base import Decision
from ianvs_specdec.routing.routers.constrained import AnyRouter, ConstrainedRouter, overrule

MEMORY = 2
"""The number of windows whose ranks are remembered."""

BEHIND = (1.5, 2.5)
"""Standard deviations by which a window is below its budget when rank begins to count for less, and for nothing."""


class Spending:
    """Two limits always hold: ``window`` successive queries are granted at most ``window * (allowance + tolerance)``,
    and all queries so far at most their allowance plus ``window * tolerance``. The window before the first query counts
    as evenly spent.

    Within them, rank decides: a query is granted its cost if it is among as many of the best recent ones as the next
    half window can afford. So the threshold rises when much was spent, and follows a drift of the scores. Equal ranks
    take their share in turn.

    ``allowance`` and ``tolerance`` are per query, in the unit of the costs. Not thread-safe.
    """

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
        """Take the rank of a query into account, or one that is expected before the first queries."""
        self._order.append((rank, cost))
        place = bisect_right(self._ranks, rank)
        self._ranks.insert(place, rank)
        self._costs.insert(place, cost)
        if len(self._order) > MEMORY * self.window:
            old, paid = self._order.popleft()
            place = self._costs.index(paid, bisect_left(self._ranks, old))
            del self._ranks[place], self._costs[place]

    def request(self, rank: float, cost: float) -> tuple[bool, str]:
        """Whether the next query is granted its cost, and why not. A negative rank asks for nothing."""
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
        """The query that was the ``index``-th (from 1) cost ``amount`` more than it was granted."""
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


CHARACTERS_PER_TOKEN = 4.0
"""Before the first answer."""
KEPT = 0.98
"""Weight of the earlier answers after each one: about the last 50 count."""
PRIOR = 4.0
"""Number of answers that the initial assumption counts as."""


class Prices:
    """Prices are per million tokens. Not thread-safe."""

    def __init__(self, prompt: float, completion: float, completion_tokens: float) -> None:
        self._prompt, self._completion = prompt / 1e6, completion / 1e6
        self._turns, self._tokens = PRIOR, PRIOR * completion_tokens
        self._characters, self._prompt_tokens = 1000 * PRIOR * CHARACTERS_PER_TOKEN, 1000 * PRIOR

    def expected(self, query: Query) -> float:
        each, rate = self._tokens / self._turns, self._prompt_tokens / self._characters
        turns = len(query.turns)
        prompt = _characters(query) * rate + turns * (turns - 1) / 2 * each
        return prompt * self._prompt + turns * each * self._completion

    def learn(self, query: Query, response: Mapping[str, Any]) -> float | None:
        """The cost of an answer, by which the next estimates go; None where there is none."""
        usage, turns = response.get("usage") or {}, len(response.get("turns") or ())
        completion, prompt = usage.get("completion_tokens"), usage.get("prompt_tokens")
        if not turns or completion is None or prompt is None:
            return None
        self._turns, self._tokens = KEPT * self._turns + turns, KEPT * self._tokens + completion
        own = prompt - (turns - 1) / 2 * completion
        if turns == len(query.turns) and own > 0:
            self._characters = KEPT * self._characters + _characters(query)
            self._prompt_tokens = KEPT * self._prompt_tokens + own
        cost = response.get("cost")
        return float(cost) if cost is not None else prompt * self._prompt + completion * self._completion


def _characters(query: Query) -> int:
    """Characters of the user's in the prompts of all turns: each turn repeats those before it."""
    turns = itertools.accumulate(map(len, query.turns))
    return sum(len(query.system) + so_far for so_far in turns)


Money = Annotated[float, Field(ge=0, le=1e9)]

NOT_HARD, DEMANDED = -1.0, math.inf
"""Ranks of a query that stays on the edge, and of one that goes to the cloud whatever its score."""


@dataclass
class _Charge:
    """The ``amount`` that was set aside for the ``index``-th query, whose cost is ``expected``."""

    index: int
    amount: float
    expected: float


class BudgetRouter(ConstrainedRouter):
    """Queries that the router inside finds hard go to the cloud, the highest scores (per unit of money) first, within
    ``cloud_share`` of the queries or ``cost_per_1000`` queries. In any ``window`` successive queries at most the share
    plus one point (the money plus 1 %) is spent, see ``Spending``.

    The cost of a query is estimated from its length and the answers so far, before the first with
    ``completion_tokens`` a turn, and then corrected. If a router around this one decides otherwise, the budget follows
    as soon as a model is asked.
    """

    def __init__(
        self,
        router: AnyRouter = "RandomRouter",
        cloud_share: Share | None = None,
        cost_per_1000: Money | None = None,
        window: Annotated[int, Field(ge=10, le=100_000)] = 200,
        price_prompt: Money | None = None,
        price_completion: Money | None = None,
        completion_tokens: Annotated[float, Field(ge=1, le=1e9)] = 256,
    ) -> None:
        self.check_hyperparameters(locals())
        super().__init__(router)
        self._prices = None
        if cloud_share is not None:
            self._spending = Spending(cloud_share, tolerance=min(0.01, cloud_share), window=window)
            for score in _expected_scores(self.inner):
                self._spending.expect(score)
        else:
            assert cost_per_1000 is not None
            self._prices = Prices(price_prompt or 0.0, price_completion or 0.0, completion_tokens)
            self._spending = Spending(cost_per_1000 / 1000, tolerance=cost_per_1000 / 1e5, window=window)
        self._charges: dict[int, _Charge] = {}
        self._mutex = threading.Lock()
        observers.subscribe(self)

    @classmethod
    def check_together(cls, given: Mapping[str, Any]) -> None:
        if (given["cloud_share"] is None) == (given["cost_per_1000"] is None):
            raise UserError("give either cloud_share or cost_per_1000", key="cost_per_1000")
        if given["cloud_share"] is None and not (given["price_prompt"] or given["price_completion"]):
            raise UserError("cost_per_1000 needs price_prompt or price_completion", key="cost_per_1000")

    def decide(self, data: Any) -> Decision:
        decision = self.ask(data)
        query = query_of_row(data)
        with self._mutex:
            cost = 1.0 if self._prices is None else self._prices.expected(query)
            rank = DEMANDED if decision.reason else decision.score / max(cost, 1e-12)
            granted, why = self._spending.request(rank if decision.hard else NOT_HARD, cost)
            self._charges[id(row_of(data))] = _Charge(self._spending.count, cost if granted else 0.0, cost)
            if len(self._charges) > 2 * self._spending.window:
                # No model reported the end of these queries.
                oldest = self._spending.count - self._spending.window
                for key in [key for key, charge in self._charges.items() if charge.index <= oldest]:
                    del self._charges[key]
        if granted or not decision.hard:
            return decision
        return overrule(decision, False, f"budget: {why}")

    def began(self, side: str, data: Any) -> None:
        with self._mutex:
            charge = self._charges.get(id(row_of(data)))
            if charge is None:
                return
            due = charge.expected if side == "cloud" else 0.0
            if due != charge.amount:
                self._spending.correct(charge.index, due - charge.amount)
                charge.amount = due

    def ended(self, side: str, data: Any, response: Mapping[str, Any] | None) -> None:
        with self._mutex:
            charge = self._charges.pop(id(row_of(data)), None)
            if charge is None or side != "cloud" or response is None or self._prices is None:
                return
            actual = self._prices.learn(query_of_row(data), response)
            if actual is not None:
                self._spending.correct(charge.index, actual - charge.amount)

    def refund(self, data: Any) -> None:
        self.began("edge", data)
        self.ended("edge", data, None)


def _expected_scores(router: Any) -> list[float]:
    """Quantiles of a trained router's scores of queries it had not seen."""
    while isinstance(router, ConstrainedRouter):
        router = router.inner
    report = getattr(getattr(router, "trained", None), "report", {})
    threshold = getattr(router, "threshold", 0.0)
    return [score if score >= threshold else NOT_HARD for score in report.get("score_quantiles") or ()]
