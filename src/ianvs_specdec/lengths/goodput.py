"""As many draft tokens as pay: the budgets with the most expected output per expected second, over all requests.

Goodput as the objective is from SmartSpec (Liu et al. 2024, arXiv 2406.14066); here nothing is profiled beforehand, and
each request gets its own share of the rows that a step verifies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ianvs_specdec.lengths.costs import DraftCosts, Floats, StepCosts
from ianvs_specdec.lengths.evidence import LEVELS, REQUEST, Counts, Everything, Trials
from ianvs_specdec.lengths.shapes import Shapes

if TYPE_CHECKING:
    from ianvs_specdec.decoding.load import Finished, Load, Share, Stats

WARM = 3
"""Steps before the first draft: the first of all also warms up."""
SETTLE_EVERY = 8
"""Steps between two reckonings of what is known of budgets: each takes a noticeable part of a small model's step."""
DWELL = 20
"""Steps for which a request that began or stopped to speculate goes on with that: at the boundary, noise would have it
change with every step."""
REST = 2 * DWELL
"""Steps after which a request that does not speculate may ask its drafter again, for once: with the step back, that is
one change in ``DWELL`` steps."""
PROBE = 0.01
"""The share of the time that may be lost on asking drafters again that did not pay."""
LITTLE = 1e-3
"""Rows: what a budget that brings no more nodes than the one before counts as."""
TOO_SHORT = 8
"""Tokens: with fewer to come, what such a trial teaches is of no use to this request."""


@dataclass(eq=False)
class _Running:
    """One request: what is known from its steps alone, and whether and since how many steps it has speculated."""

    task: Counts
    counts: Counts = field(default_factory=lambda: Counts(REQUEST))
    on: bool | None = None
    steady: int = 0
    changed: bool = False
    probing: bool = False

    @property
    def bound(self) -> bool:
        """Whether it has to go on as it is."""
        return self.changed and not self.probing and self.steady < DWELL

    def settle(self, on: bool) -> None:
        """It speculates in the next step, or does not."""
        if on == self.on:
            self.steady += 1
            self.probing &= on and self.steady < DWELL
            return
        # Its first decision is no change.
        self.changed = self.on is not None
        self.on, self.steady, self.probing = on, 0, on and self.probing


class Goodput:
    """Each step's rows go to the requests in which they are likeliest to be accepted, as long as that pays.

    A budget's gain is the number of tokens that it lets a request expect, by the evidence of the request, its task and
    everything. Steps of all requests (from nobody drafting to everybody drafting at length) are lined up by gain per
    row, and the point with the most tokens per second is taken.
    """

    confidence = 0.0

    def __init__(self) -> None:
        self._verify, self._draft = StepCosts(), DraftCosts()
        self._prompt_row = 0.0
        self._everything, self._shapes = Everything(), Shapes()
        self._options = _Options.of(self._shapes)
        self._until_settled = 0
        self._fund = 0.0

    @classmethod
    def from_argument(cls, argument: str) -> Goodput:
        if argument:
            raise ValueError("goodput takes no argument: it learns everything from the run")
        return cls()

    def budgets(self, load: Load) -> Sequence[int]:
        running = [self._known(stats) for stats in load.running]
        if self._verify.samples < WARM:
            return [0] * len(running)
        if self._until_settled == 0:
            self._everything.settle()
            self._options = _Options.of(self._shapes)
            self._until_settled = SETTLE_EVERY
        self._until_settled -= 1
        plan = self._plan(load, running)
        for request, place in zip(running, plan, strict=True):
            request.settle(place >= 0)
        return [int(self._options.budgets[place]) if place >= 0 else 0 for place in plan]

    def learn(self, finished: Finished) -> None:
        rows = finished.rows
        seconds = finished.verify_seconds
        self._fund += PROBE * (finished.draft_seconds + seconds)
        if not rows:
            return
        if finished.prompt_rows:
            taken = (seconds - float(self._verify.at(np.array([rows]), finished.context)[0])) / finished.prompt_rows
            self._prompt_row += (max(taken, 0.0) - self._prompt_row) / SETTLE_EVERY
        else:
            self._verify.add(rows, seconds, finished.context)
        asked = [share for share in finished.shares if share.budget]
        depth = max((share.depth for share in asked), default=0)
        nodes, behind = sum(share.step.drafted for share in asked), sum(share.behind for share in asked)
        self._draft.add((1, len(asked), depth, nodes, behind), finished.draft_seconds)
        if learned := [share for share in asked if not share.over]:
            self._learn(learned)

    def _learn(self, shares: Sequence[Share]) -> None:
        known = len(self._shapes.budgets())
        for share in shares:
            self._shapes.add(share)
        if len(self._shapes.budgets()) > known:
            self._until_settled = 0
        passed = [share.step.accepted + 1 if share.step.drafted else 0 for share in shares]
        failed = [share.step.accepted < share.depth or self._shapes.ended(share) for share in shares]
        trials = Trials(passed, failed, [self._shapes.width(share.step.drafted) for share in shares])
        running: list[_Running] = [share.stats.kept for share in shares]
        Counts.add_each([request.counts for request in running], trials)
        tasks = {id(request.task): request.task for request in running}
        for task in tasks.values():
            task.add(trials.of([place for place, request in enumerate(running) if request.task is task]))
        self._everything.counts.add(trials)

    def _known(self, stats: Stats) -> _Running:
        if stats.kept is None:
            stats.kept = _Running(self._everything.task(stats.task))
        request: _Running = stats.kept
        return request

    def _plan(self, load: Load, running: Sequence[_Running]) -> list[int]:
        """For each request the place of its budget among the options, -1 for none."""
        options, number = self._options, len(running)
        misses = self._everything.misses([(request.task, request.counts) for request in running])
        left = np.array([stats.remaining - 1.0 for stats in load.running])
        gains = options.gains(misses, left)
        more, more_rows = np.diff(gains, axis=1, prepend=0.0), options.more_rows * (1 - misses[:, :1])
        # A larger budget is not taken before a smaller one: where gains grow faster later on, they are spread.
        worth = np.minimum.accumulate(more / more_rows, axis=1)
        bound = np.array([request.bound for request in running])
        on = np.array([bool(request.on) for request in running]) & (left > 0)
        worth[bound & on, 0] = np.inf
        worth[(left < 1) | (bound & ~on)] = -1.0
        order = np.argsort(-worth, axis=None, kind="stable")[: np.count_nonzero(worth > 0)]
        who, place = np.divmod(order, len(options.budgets))
        # What a drafter has to catch up with serves all steps to come.
        behind = np.array([stats.behind for stats in load.running]) / np.maximum(left / (1 + gains[:, 0]), 1.0)
        begins = place == 0
        terms = np.zeros((len(order) + 1, DraftCosts.TERMS))
        terms[:, 0] = 1
        terms[1:, 1] = np.cumsum(begins)
        terms[1:, 2] = np.maximum.accumulate(options.depths[place])
        terms[1:, 3] = np.cumsum(more_rows[who, place])
        terms[1:, 4] = np.cumsum(begins * behind[who])
        rows = number + terms[:, 3] + terms[:, 1] * options.scouts
        tokens = number + np.concatenate([[0.0], np.cumsum(more[who, place])])
        seconds = self._verify.at(rows, _context(load)) + self._draft.at(terms) + load.prompt_rows * self._prompt_row
        forced = int(np.count_nonzero(bound & on))
        best = forced + int(np.argmax((tokens / seconds)[forced:]))
        plan = np.full(number, -1)
        np.maximum.at(plan, who[:best], place[:best])
        chosen: list[int] = plan.tolist()
        self._probe(running, load, chosen)
        return chosen

    def _probe(self, running: Sequence[_Running], load: Load, plan: list[int]) -> None:
        """Once in a while, ask the drafter of a request for the least that is not asked otherwise."""
        for index, (request, stats) in enumerate(zip(running, load.running, strict=True)):
            resting = request.on is None or (not request.on and request.steady >= REST)
            if plan[index] < 0 and resting and stats.remaining > TOO_SHORT:
                price = self._price(load, stats)
                if self._fund >= price:
                    self._fund -= price
                    plan[index] = 0
                    request.probing = True
                return

    def _price(self, load: Load, stats: Stats) -> float:
        """Seconds that one more request with the smallest budget costs, if nothing of it is accepted."""
        number, options = len(load.running), self._options
        rows = np.array([number, number + options.more_rows[0] + options.scouts])
        verify = self._verify.at(rows, _context(load))
        draft = self._draft.at(np.array([[0.0, 1, options.depths[0], options.more_rows[0], stats.behind]]))
        return float(verify[1] - verify[0] + draft[0])


def _context(load: Load) -> int:
    return sum(stats.context_tokens for stats in load.running)


@dataclass(frozen=True)
class _Options:
    """The budgets to choose among, smallest first, their depths and widths, and what each has more rows than the one
    before; ``scouts`` are further rows of every draft."""

    budgets: Floats
    depths: Floats
    widths: Floats
    more_rows: Floats
    scouts: float

    @classmethod
    def of(cls, shapes: Shapes) -> _Options:
        budgets = np.array(shapes.budgets(), dtype=np.float64)
        nodes, depths = np.array([shapes.of(int(budget)) for budget in budgets]).T
        more_rows = np.diff(np.maximum.accumulate(nodes), prepend=0.0)
        widths = np.array([shapes.width(size) for size in nodes])
        return cls(budgets, depths, widths, np.maximum(more_rows, LITTLE), shapes.scouts)

    def gains(self, misses: Floats, left: Floats) -> Floats:
        """Tokens that each request may expect to be accepted of each budget, ``[requests, budgets]``, if no more than
        ``left`` are of use."""
        deepest = min(int(np.ceil(self.depths.max())), LEVELS - 1)
        miss = misses[:, None, 1 : deepest + 1]
        right = (1 - miss) * self.widths[:, None]
        reach = np.cumprod(right / (right + miss), axis=2)
        depths = np.clip(self.depths, 0.0, left[:, None])
        counted = np.clip(depths[:, :, None] - np.arange(deepest), 0.0, 1.0)
        result: Floats = (1 - misses[:, :1]) * (reach * counted).sum(2)
        return result
