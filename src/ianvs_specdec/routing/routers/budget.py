"""BudgetRouter: the cloud for the queries that need it most, within a share of the queries or a sum of money."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from ianvs_specdec.benchmarks.rows import query_of_row, row_of
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.settings import Share
from ianvs_specdec.plugin import observers
from ianvs_specdec.routing.routers.base import Decision
from ianvs_specdec.routing.routers.composed import AnyRouter, ConstrainedRouter, overrule
from ianvs_specdec.routing.routers.pricing import Prices
from ianvs_specdec.routing.routers.spending import Spending

Money = Annotated[float, Field(ge=0, le=1e9)]

NOT_HARD, DEMANDED = -1.0, math.inf
"""Ranks of a query that the router inside leaves on the edge, and of one that it sends to the cloud whatever its score.
"""


@dataclass
class _Charge:
    """What was set aside for a query: for which one of all, how much, and what it will cost as far as one can tell."""

    index: int
    amount: float
    expected: float


class BudgetRouter(ConstrainedRouter):
    """``router``: see ``ConstrainedRouter``. What it finds hard goes to the cloud as long as the budget lasts, those of
    the highest score first (per unit of money, if that is what is counted); a budget is a limit, not an aim: a
    ``threshold`` of 0 inside spends all of it.

    One of the two:

    - ``cloud_share``: at most this share of the queries, from 0 to 1;
    - ``cost_per_1000``: at most so much money for 1,000 queries, at ``price_prompt`` and ``price_completion`` (per
      million tokens). What a query will cost is estimated from its length and from the answers so far, before the first
      of them with ``completion_tokens`` a turn, and corrected by what it did cost.

    It holds at any time: never more than the share plus one point (the money plus 1 %) in any ``window`` (200)
    successive queries, never more than the budget and that tolerance for one window since the first query. See
    ``Spending`` for how the threshold follows the scores. What a router around this one decides otherwise is accounted
    for as soon as a model is asked.
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
            # What a query costs per score is known when queries are: scores alone tell nothing of it.
            assert cost_per_1000 is not None
            self._prices = Prices(price_prompt or 0.0, price_completion or 0.0, completion_tokens)
            self._spending = Spending(cost_per_1000 / 1000, tolerance=cost_per_1000 / 1e5, window=window)
        self._charges: dict[int, _Charge] = {}
        self._mutex = threading.Lock()
        observers.subscribe(self)

    @classmethod
    def check_together(cls, given: Mapping[str, Any]) -> None:
        if (given["cloud_share"] is None) == (given["cost_per_1000"] is None):
            raise UserError("a budget is either cloud_share or cost_per_1000", key="cost_per_1000")
        if given["cloud_share"] is None and not (given["price_prompt"] or given["price_completion"]):
            raise UserError("cost_per_1000 needs price_prompt and price_completion", key="cost_per_1000")

    def decide(self, data: Any) -> Decision:
        decision = self.ask(data)
        query = query_of_row(data)
        with self._mutex:
            cost = 1.0 if self._prices is None else self._prices.expected(query)
            rank = DEMANDED if decision.reason else decision.score / max(cost, 1e-12)
            granted, why = self._spending.request(rank if decision.hard else NOT_HARD, cost)
            self._charges[id(row_of(data))] = _Charge(self._spending.count, cost if granted else 0.0, cost)
            if len(self._charges) > 2 * self._spending.window:
                # Nobody tells the end of these queries.
                oldest = self._spending.count - self._spending.window
                self._charges = {key: charge for key, charge in self._charges.items() if charge.index > oldest}
        if granted or not decision.hard:
            return decision
        return overrule(decision, False, f"budget: {why}")

    def began(self, side: str, data: Any) -> None:
        """Where a router around this one has decided otherwise, what is set aside follows."""
        with self._mutex:
            charge = self._charges.get(id(row_of(data)))
            if charge is None:
                return
            due = charge.expected if side == "cloud" else 0.0
            if due != charge.amount:
                self._spending.correct(charge.index, due - charge.amount)
                charge.amount = due

    def ended(self, side: str, data: Any, response: Mapping[str, Any] | None) -> None:
        """The price of an answer is known."""
        with self._mutex:
            charge = self._charges.pop(id(row_of(data)), None)
            if charge is None or side != "cloud" or response is None or self._prices is None:
                return
            actual = self._prices.learn(query_of_row(data), response)
            if actual is not None:
                self._spending.correct(charge.index, actual - charge.amount)


def _expected_scores(router: Any) -> list[float]:
    """Quantiles of the scores that a trained router gave queries it had not seen, where its folder tells them."""
    while isinstance(router, ConstrainedRouter):
        router = router.inner
    report = getattr(getattr(router, "trained", None), "report", {})
    threshold = getattr(router, "threshold", 0.0)
    return [score if score >= threshold else NOT_HARD for score in report.get("score_quantiles") or ()]
