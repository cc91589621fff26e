"""What decides for each request what it drafts, once it is known what the best step is for all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ianvs_specdec.lengths.evidence import DIFFICULTIES, Floats
from ianvs_specdec.lengths.shapes import Shapes

LITTLE = 1e-3
"""Rows: what a budget that brings no more nodes than the one before counts as."""

JOINED = 0.25
"""A plan no longer holds when the number of requests has changed by more than that share."""

Choice = tuple[int, float, float]
"""A budget, the seconds that it saves if there is a draft, and the tokens of such a step."""


@dataclass(frozen=True)
class Options:
    """The budgets to choose among, smallest first, their nodes, depths and widths; ``scouts`` are further rows of every
    draft."""

    budgets: Floats
    nodes: Floats
    depths: Floats
    widths: Floats
    scouts: float

    @classmethod
    def of(cls, shapes: Shapes) -> Options:
        budgets = np.array(shapes.budgets(), dtype=np.float64)
        nodes, depths = np.array([shapes.of(int(budget)) for budget in budgets]).T
        widths = np.array([shapes.width(size) for size in nodes])
        return cls(budgets, np.maximum.accumulate(nodes), depths, widths, shapes.scouts)

    @cached_property
    def more_rows(self) -> Floats:
        """What each has more rows than the one before."""
        return np.maximum(np.diff(self.nodes, prepend=0.0), LITTLE)

    @cached_property
    def _levels(self) -> Floats:
        """``[budgets, levels]``: how much of each level a draft has."""
        return np.clip(self.depths[:, None] - np.arange(max(math.ceil(self.depths.max()), 1)), 0.0, 1.0)

    def gains(self, misses: Floats, going_on: float = 1.0) -> Floats:
        """Tokens that may be expected to be accepted of each budget if there is a draft, ``[difficulties, budgets]``,
        for guesses that miss so often by difficulty and level, and outputs of which each token has, with the
        probability ``going_on``, another one behind it."""
        levels = np.minimum(np.arange(self._levels.shape[1]), misses.shape[1] - 1)
        # Of chains, all budgets have the same width.
        same = bool((self.widths == self.widths[0]).all())
        miss, widths = misses[:, None, levels], self.widths[:1] if same else self.widths
        right = (1 - miss) * widths[:, None]
        # What is right behind the output's end is of no use.
        reach = (right / (right + miss)).cumprod(axis=2) * going_on ** np.arange(len(levels))
        result: Floats = reach[:, 0] @ self._levels.T if same else (reach * self._levels).sum(2)
        return result

    def best(self, gains: Floats, saved: Floats, rates: Floats) -> list[Choice]:
        """For each difficulty the budget of the highest rate, 0 where that saves no seconds."""
        places, each = np.argmax(rates, axis=1), np.arange(len(rates))
        most = saved[each, places]
        budgets = np.where(most > 0, self.budgets[places], 0).astype(int).tolist()
        return list(zip(budgets, most.tolist(), (1 + gains[each, places]).tolist(), strict=True))


NOBODY: Sequence[Choice] = ((0, 0.0, 1.0),) * len(DIFFICULTIES)
"""The choices where nobody drafts."""


@dataclass(frozen=True)
class DraftPlan:
    """What each request is to draft, by the difficulty of its guesses: ``choices``, and those of requests that had
    better ``rest``. Asking a drafter takes ``call`` seconds, and ``late`` for each token that it is behind. A
    ``token`` that is accepted saves so many. A ``trial`` is for the sake of what it teaches. With the
    ``same`` budget for all, what is learned of a request changes nothing."""

    choices: Sequence[Choice] = NOBODY
    rest: Sequence[Choice] = NOBODY
    call: float = 0.0
    late: float = 0.0
    token: float = 0.0
    trial: bool = False
    same: bool = False

    def uniform(self, budget: int) -> DraftPlan:
        """The same, but that all requests draft so much."""
        choices = ((budget, math.inf, 1.0),) * len(DIFFICULTIES)
        return replace(self, choices=choices, rest=choices, same=True)


class KeptPlans:
    """By the number of requests for which it was made: a plan, and the step up to which it holds."""

    def __init__(self) -> None:
        self._plans: dict[int, tuple[DraftPlan, int]] = {}

    def add(self, number: int, plan: DraftPlan, until: int) -> None:
        self._plans[number] = plan, until

    def near(self, number: int, now: int) -> tuple[int, DraftPlan, int] | None:
        """Of those that hold at step ``now``, the one for about that ``number`` of requests, if any: for how many
        it was made, the plan, and up to when it holds."""
        self._plans = {one: kept for one, kept in self._plans.items() if kept[1] > now}
        near = [one for one in self._plans if abs(number - one) <= JOINED * one]
        if not near:
            return None
        nearest = min(near, key=lambda one: abs(number - one))
        return nearest, *self._plans[nearest]

    def clear(self) -> None:
        self._plans.clear()
