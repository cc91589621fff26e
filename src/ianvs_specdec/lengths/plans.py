"""What a step may be for all requests, and what decides for each of them where the best one is known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ianvs_specdec.lengths.evidence import DIFFICULTIES, Floats
from ianvs_specdec.lengths.shapes import Shapes

LITTLE = 1e-3
"""Rows: what a budget that brings no more nodes than the one before counts as."""

JOINED = 0.25
"""A plan no longer holds when the number of requests has changed by more than that share."""

Place = tuple[int, int]
"""A line, and a step of it."""

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
        return np.maximum(_changes(self.nodes), LITTLE)

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


@dataclass(frozen=True)
class Steps:
    """Steps for ``number`` requests, in lines: what they have of requests, of rows, of requests asked for drafts, of
    nodes and levels of these, of tokens to catch up with, and the ``tokens`` that may be expected. At each place of a
    line ``who`` joins, with the budget at ``place`` among the options.

    All this is of the mix of requests that there will be after a while: who gets faster by drafts is done sooner, and
    so is a smaller part of those that run. A line begins with nobody drafting, and draft tokens join in the order in
    which they begin to pay, the more a step takes that has none. The deepest draft has its time for itself: so each
    budget as the largest one has a line of its own.

    Who is done makes room for others. Where the step is ``bound``, their prompts would have to be read faster than they
    are: fewer requests run, then.
    """

    number: int
    requests: Floats
    rows: Floats
    asked: Floats
    nodes: Floats
    depth: Floats
    behind: Floats
    tokens: Floats
    bound: NDArray[np.bool_]
    who: NDArray[np.int64]
    place: NDArray[np.int64]

    @classmethod
    def lined_up(
        cls, options: Options, gains: Floats, found: Floats, behind: Floats, pace: Floats, most: float
    ) -> Steps:
        """``gains`` are ``[requests, budgets]``; of a request, ``found`` is how likely it has a draft, ``behind`` how
        much a step has of what its drafter has missed, beside what a step emits with each draft, and ``pace`` the
        tokens of a step up to now. Steps may come to have ``most`` times as many tokens as they had."""
        number = len(found)
        who, place = _order(1 + gains, options.more_rows * found[:, None])
        within = place <= np.arange(len(options.budgets))[:, None]
        depth = np.maximum.accumulate(_from_none(within * options.depths[place] * found[who]), axis=1)
        # Requests of a kind run for as many steps as their tokens take them.
        parts = pace[:, None] / (1 + gains)
        of_each = np.stack((parts, parts * options.nodes * found[:, None], parts * (behind[:, None] + 1 + gains)))
        joining = _changes(of_each)[:, who, place]
        begun = np.where(place == 0, pace[who], 0.0)
        drafting, nodes, missed, idle = _sums(within * np.concatenate((joining, begun[None]))[:, None])
        running = drafting - idle + pace.sum()
        scale = np.minimum(number / running, most)
        asked, drafted = scale * drafting, scale * nodes
        return cls(
            number,
            scale * running,
            scale * running + drafted + asked * options.scouts,
            asked,
            drafted,
            depth,
            scale * missed,
            scale * pace.sum(),
            number / running > most,
            who,
            place,
        )

    def fastest(self, seconds: Floats, among: NDArray[np.bool_] | None = None) -> Place:
        """The place of the step with the most ``tokens`` per second, ``among`` some if they are given."""
        rates = self.tokens / seconds if among is None else np.where(among, self.tokens / seconds, 0.0)
        line, step = np.unravel_index(np.argmax(rates), seconds.shape)
        return int(line), int(step)

    def budgets(self, at: Place, options: Options) -> list[int]:
        """What each request drafts in a step."""
        line, step = at
        largest = np.full(self.number, -1)
        joined = self.place[:step] <= line
        np.maximum.at(largest, self.who[:step][joined], self.place[:step][joined])
        return np.where(largest < 0, 0, options.budgets[largest]).astype(int).tolist()


def _order(tokens: Floats, more_rows: Floats) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Requests and places among their budgets, in the order in which these begin to pay.

    With ``t`` tokens from ``r`` rows, a request takes ``(f + r) / t`` of the machine's time for each token, where the
    rest of a step takes as long as ``f`` rows for each request. The larger that is, the more rows pay.
    """
    rows = 1 + np.cumsum(more_rows, axis=1)
    before = np.concatenate([np.ones((len(tokens), 1)), tokens[:, :-1]], axis=1)
    more = tokens - before
    pays = np.full(tokens.shape, np.inf)
    np.divide(more_rows * before, more, out=pays, where=more > 0)
    # A larger budget is not taken before a smaller one.
    pays = np.maximum.accumulate(pays - (rows - more_rows), axis=1)
    order = np.argsort(pays, axis=None, kind="stable")[: np.count_nonzero(np.isfinite(pays))]
    who, place = np.divmod(order, tokens.shape[1])
    return who, place


def _from_none(values: Floats) -> Floats:
    """``[..., values]``, with a 0 before them."""
    result = np.zeros((*values.shape[:-1], values.shape[-1] + 1))
    result[..., 1:] = values
    return result


def _changes(values: Floats) -> Floats:
    """``[..., values]``: what each is more than the one before it, the first more than 0."""
    result = values.copy()
    result[..., 1:] -= values[..., :-1]
    return result


def _sums(values: Floats) -> Floats:
    """``[..., values]``: the sums of the first none, one, two, ... of them."""
    return _from_none(values.cumsum(axis=-1))


NOBODY: Sequence[Choice] = ((0, 0.0, 1.0),) * len(DIFFICULTIES)
"""The choices where nobody drafts."""


@dataclass(frozen=True)
class DraftPlan:
    """What each request is to draft, by the difficulty of its guesses: ``choices``, and those of requests that had
    better ``rest``. Asking a drafter takes ``call`` seconds, and ``late`` for each token that it is behind. A
    ``token`` that is accepted saves so many. A ``trial`` is for the sake of what it teaches."""

    choices: Sequence[Choice] = NOBODY
    rest: Sequence[Choice] = NOBODY
    call: float = 0.0
    late: float = 0.0
    token: float = 0.0
    trial: bool = False


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
