"""What a step may be for all requests that run: those in which each drafts as much as suits it (ragged), and those in
which all draft the same (uniform)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ianvs_specdec.lengths.evidence import Floats
from ianvs_specdec.lengths.plans import Options
from ianvs_specdec.lengths.prompts import Prompts

Place = tuple[int, int]
"""A line of steps, and one of them."""

ENOUGH, PROMISES, MOST = 1.1, 2, 2.0
"""Requests are told apart if that promises so many times the tokens per second of the best step in which all draft the
same, on average over so many plans, of which none counts for more than so many times. The best of many steps seems
better than it is, as it is chosen by the errors of what is known, too (Smith and Winkler 2006, "The optimizer's
curse"): the more is told apart, the more so, and most where little is known."""
HARDLY, SELDOM = 1.025, 4
"""Where it promised no more than so many times that, it is looked at in one of so many plans."""


@dataclass(frozen=True)
class Steps:
    """Steps for ``number`` requests, in lines: what they have of requests, of rows, of requests asked for drafts, of
    nodes and levels of these, of tokens to catch up with, and the ``tokens`` that may be expected.

    All this is of the mix of requests that there will be after a while: who gets faster by drafts is done sooner, and
    so is a smaller part of those that run.

    Who is done makes room for others, which have to read their prompts first. Where the step is ``bound``, these would
    have to be read faster than they can be: fewer requests run, then. So often a step is ``reading`` prompts.
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
    reading: Floats

    def fastest(self, seconds: Floats, among: NDArray[np.bool_] | None = None) -> Place:
        """The place of the step with the most tokens per second, ``among`` some if they are given."""
        rates = self.tokens / seconds if among is None else np.where(among, self.tokens / seconds, 0.0)
        line, step = np.unravel_index(np.argmax(rates), seconds.shape)
        return int(line), int(step)

    def budgets(self, at: Place, options: Options) -> list[int]:
        """What each request drafts in a step."""
        raise NotImplementedError


@dataclass(frozen=True)
class Best:
    """The fastest of the ``steps``, at that ``place``; ``taken`` are the seconds of all of them."""

    steps: Steps
    taken: Floats
    place: Place

    @classmethod
    def of(cls, steps: Steps, taken: Floats) -> Best:
        return cls(steps, taken, steps.fastest(taken))

    @property
    def drafts(self) -> bool:
        """Whether anybody drafts in it."""
        return bool(self.steps.asked[self.place])

    @property
    def seconds(self) -> float:
        """What it takes."""
        return float(self.taken[self.place])

    @property
    def seconds_of_plain(self) -> float:
        """What the step takes in which nobody drafts."""
        return float(self.taken[0, 0])

    @property
    def rate(self) -> float:
        """Its tokens per second."""
        return float(self.steps.tokens[self.place]) / self.seconds


@dataclass(frozen=True)
class RaggedSteps(Steps):
    """A line begins with nobody drafting, and draft tokens join in the order in which they begin to pay, the more a
    step takes that has none: at each place ``who`` joins, with the budget at ``place`` among the options. The deepest
    draft has its time for itself: so each budget as the largest one has a line of its own."""

    who: NDArray[np.int64]
    place: NDArray[np.int64]

    def budgets(self, at: Place, options: Options) -> list[int]:
        line, step = at
        largest = np.full(self.number, -1)
        joined = self.place[:step] <= line
        np.maximum.at(largest, self.who[:step][joined], self.place[:step][joined])
        return np.where(largest < 0, 0, options.budgets[largest]).astype(int).tolist()


@dataclass(frozen=True)
class UniformSteps(Steps):
    """One line, from nobody drafting to all with the largest of the options. Each is the step at the end of a ragged
    line."""

    def budgets(self, at: Place, options: Options) -> list[int]:
        return [int(options.budgets[at[1] - 1]) if at[1] else 0] * self.number


@dataclass(frozen=True)
class Mix:
    """The requests that run. ``gains`` are the tokens that drafts are expected to bring, ``[requests, budgets]``. Of a
    request, ``found`` is how likely it has a draft, ``behind`` how much a step has of what its drafter has missed,
    beside what a step emits with each draft, and ``pace`` the tokens of a step up to now, which came with ``prompts``
    of others."""

    gains: Floats
    found: Floats
    behind: Floats
    pace: Floats
    prompts: Prompts

    def ragged(self, options: Options) -> RaggedSteps:
        """Those in which rows go where they pay most."""
        tokens, pace = 1 + self.gains, self.pace
        who, place = _order(tokens, options.more_rows * self.found[:, None])
        within = place <= np.arange(len(options.budgets))[:, None]
        depth = np.maximum.accumulate(_from_none(within * options.depths[place] * self.found[who]), axis=1)
        joining = _changes(self._of_each(options))[:, who, place]
        begun = np.where(place == 0, pace[who], 0.0)
        *drafts, idle = _sums(within * np.concatenate((joining, begun[None]))[:, None])
        return RaggedSteps(*self._steps(options, depth, pace.sum() - idle, *drafts), who, place)

    def uniform(self, options: Options) -> UniformSteps:
        """Those in which all draft the same."""
        drafts = _from_none(self._of_each(options).sum(axis=1))[:, None]
        depth = _from_none(options.depths * self.found.max())[None]
        idle = np.where(depth > 0, 0.0, self.pace.sum())
        return UniformSteps(*self._steps(options, depth, idle, *drafts))

    def _of_each(self, options: Options) -> Floats:
        """What a step has, with each budget, of each request: of the request itself, of its nodes, and of tokens to
        catch up with. Requests of a kind run for as many steps as their tokens take them."""
        parts = self.pace[:, None] / (1 + self.gains)
        nodes = parts * options.nodes * self.found[:, None]
        return np.stack((parts, nodes, parts * (self.behind[:, None] + 1 + self.gains)))

    def _steps(
        self, options: Options, depth: Floats, idle: Floats, drafting: Floats, nodes: Floats, missed: Floats
    ) -> tuple[int, Floats, Floats, Floats, Floats, Floats, Floats, Floats, NDArray[np.bool_], Floats]:
        """The fields of ``Steps``, for what they would have of requests that draft and that do not (``idle``), if they
        had as many tokens as up to now."""
        number, running, reading = len(self.pace), drafting + idle, self.prompts.reading
        # The places are those of all, and who reads a prompt has one as well.
        growth = (number + reading) / (running + reading)
        bound, scale = growth > self.prompts.most, np.minimum(growth, self.prompts.most)
        asked, drafted = scale * drafting, scale * nodes
        rows = scale * running + drafted + asked * options.scouts
        tokens = scale * self.pace.sum()
        # Whoever comes does so at any time.
        reads = 1 - (1 - self.prompts.often) ** scale
        return number, scale * running, rows, asked, drafted, depth, scale * missed, tokens, bound, reads


class Apart:
    """Whether requests are to be told apart."""

    def __init__(self) -> None:
        self._promise, self._waits, self._passed = 1.0, 0, 0

    def waits(self) -> bool:
        """Whether this plan does not look at it."""
        self._passed += 1
        return self._passed <= self._waits

    def pays(self, promise: float) -> bool:
        """The latest plan promises so many times the tokens per second that it has with one length for all."""
        self._promise += (min(promise, MOST) - self._promise) / PROMISES
        self._passed = 0
        self._waits = min(self._waits + 1, SELDOM - 1) if self._promise < HARDLY else 0
        return self._promise > ENOUGH


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
