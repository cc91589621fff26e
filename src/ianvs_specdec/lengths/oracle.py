"""What the best length of each step would have been, where what will be accepted is known beforehand."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.engine.length import Stats

if TYPE_CHECKING:
    from ianvs_specdec.engine.costs import CostTable
    from ianvs_specdec.engine.length import FinishedStep, Load

ONLY_REPLAY = (
    "oracle knows which drafts will be accepted, and only `specdec simulate` can tell it; choose another length"
)


@dataclass(eq=False, slots=True)
class Replayed(Stats):
    """A request whose future is known: ``coming(n)`` of its next draft of n tokens would be accepted."""

    coming: Callable[[int], int] = field(default=lambda most: 0)


class Oracle:
    """For each step the budgets with the most tokens per second of that step, by the true costs and acceptance.

    Only tokens that will be accepted are drafted. Levels are filled one after the other, since a draft costs by its
    depth: of all requests first the first token, then the second. It looks no further than the step, so it is a bound
    for requests that are alike: easy ones that leave sooner let hard ones fill the steps to come.
    """

    confidence = 0.0

    def __init__(self, costs: CostTable) -> None:
        self._costs = costs

    @classmethod
    def from_argument(cls, argument: str) -> Oracle:
        raise ValueError(ONLY_REPLAY)

    def budgets(self, load: Load) -> Sequence[int]:
        most = self._costs.largest_draft
        coming = []
        for stats in load.running:
            if not isinstance(stats, Replayed):
                raise UserError(f"length {ONLY_REPLAY}", key="length")
            coming.append(stats.coming(most))
        tokens = self._best(load, sorted(coming))
        return _level_by_level(coming, tokens)

    def learn(self, finished: FinishedStep) -> None:
        """There is nothing left to learn."""

    def _best(self, load: Load, coming: Sequence[int]) -> int:
        """How many tokens to draft in all, of requests of which ``coming`` would be accepted, in order of size."""
        costs, running = self._costs, len(coming)
        context = load.context_tokens
        behind = sum([stats.unread_tokens for stats in load.running])
        reading = load.prompt_rows, load.prompt_rows
        best, choice, total = running / costs.step_seconds(running, context, running, *reading), 0, 0
        for level in range(1, coming[-1] + 1):
            reaching = running - bisect_left(coming, level)
            drafting = costs.draft_seconds([min(size, level) for size in coming if size], behind)
            # Between two knots of the table the rate has no maximum.
            knots = {knot - running for knot in costs.step.first if total < knot - running < total + reaching}
            for tokens in (*knots, total + reaching):
                rows = running + tokens
                rate = rows / (drafting + costs.step_seconds(rows, context, running, *reading))
                if rate > best:
                    best, choice = rate, tokens
            total += reaching
        return choice


def _level_by_level(coming: Sequence[int], tokens: int) -> list[int]:
    """``tokens`` given out to all in turn, to none more than are ``coming``."""
    budgets = [0] * len(coming)
    level = 0
    while tokens > 0:
        for index, most in enumerate(coming):
            if most > level and tokens > 0:
                budgets[index] += 1
                tokens -= 1
        level += 1
    return budgets
