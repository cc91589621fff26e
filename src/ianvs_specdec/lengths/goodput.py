"""As many draft tokens as pay: the budget with the most expected output per expected second.

Goodput as the objective is from SmartSpec (Liu et al. 2024, arXiv 2406.14066); here nothing is profiled beforehand.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ianvs_specdec.lengths.costs import Timing
from ianvs_specdec.lengths.evidence import EVERYTHING, LEVELS, REQUEST, Counts, Task

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ianvs_specdec.decoding.load import Finished, Load, Share, Stats

BUDGETS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
SETTLE_EVERY = 8
"""Steps between two reckonings of what all budgets cost: each takes a noticeable part of a small model's step."""

EXPLORE, PROBE = 0.01, 0.005
"""Shares of the time that may be lost on budgets that might be better than the best one known, and, per task, on asking
a drafter again that did not pay."""

LONGEST_REST = 16
"""Steps for which a drafter that does not pay is not thought about, however little there is in the fund."""

TOO_SHORT = 8
"""Tokens: with fewer to come, what a trial teaches is of no use to this request."""

DOUBT = 0.4
"""By what share the miss rate of a level that was never tried may be lower than it seems."""

WIDTH = 0.2
"""In a branching tree of n nodes a miss is about n ** WIDTH times rarer than in a chain."""

RECENT = 20
"""Steps over which the size of drafts is averaged."""

FILLED = 0.9
"""A drafter that uses less of its budget than this share has nothing more to say at a larger one."""

SHORTEST = 1e-9
"""Seconds: what a clock that did not move is taken for."""


@dataclass
class _Shape:
    """What came of asking for a budget: how often there was a draft, its nodes on average, its greatest depth."""

    drafts: int = 0
    nodes: float = 0.0
    depth: int = 0


@dataclass
class _Option:
    """A budget: the depth to expect, how much rarer misses are than in a chain, the step's seconds with a draft and
    without one. As the next step sees it: its seconds and accepted tokens on average."""

    budget: int
    depth: float
    width: float
    found: float
    empty: float
    time: float = 0.0
    accepted: float = 0.0

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return (1 + self.accepted) / self.time


@dataclass
class _Running:
    """One request under way, and what is known from its steps alone."""

    task: Task
    counts: Counts = field(default_factory=lambda: Counts(REQUEST))
    options: list[_Option] = field(default_factory=list)
    plain: float = 0.0
    until_settled: int = 0
    resting: int = 0


class Goodput:
    """What is learned of one request serves all others at once. Of requests that share their steps each chooses for
    itself: the step's time as it is with the others in it, by the size of its own draft."""

    confidence = 0.0

    def __init__(self) -> None:
        self._verify, self._draft, self._futile = Timing(), Timing(), Timing()
        self._everything = Counts(EVERYTHING)
        self._tasks: dict[str, Task] = {}
        self._shapes: dict[int, _Shape] = {}
        self._branching = False
        self._scouts = 0.0
        self._fund = 0.0

    @classmethod
    def from_argument(cls, argument: str) -> Goodput:
        if argument:
            raise ValueError("goodput takes no argument: it learns everything from the run")
        return cls()

    def budgets(self, load: Load) -> Sequence[int]:
        return [self._budget(stats) for stats in load.running]

    def learn(self, finished: Finished) -> None:
        for share in finished.shares:
            if not share.over and share.stats.kept is not None:
                self._learn_step(share.stats.kept, share, finished)

    def _budget(self, stats: Stats) -> int:
        if stats.kept is None:
            if stats.task not in self._tasks:
                self._tasks[stats.task] = Task(self._everything)
            stats.kept = _Running(self._tasks[stats.task])
        request: _Running = stats.kept
        if request.resting > 0:
            request.resting -= 1
            return 0
        # The first step of all also warms up.
        if stats.remaining < 2 or self._verify.samples(1) < 2:
            return 0
        if request.until_settled == 0:
            self._settle(request, stats)
            request.until_settled = SETTLE_EVERY
        request.until_settled -= 1
        return self._choose(request, stats)

    def _learn_step(self, request: _Running, share: Share, finished: Finished) -> None:
        step, asked, depth, stats = share.step, share.budget, share.depth, share.stats
        draft, verify = finished.draft_seconds, finished.verify_seconds
        self._verify.add(step.verified, max(verify, SHORTEST), stats.context_tokens)
        timing = self._draft if step.drafted or not asked else self._futile
        timing.add(asked if step.drafted else 0, max(draft, SHORTEST), 0)
        request.task.fund += PROBE * (draft + verify)
        self._fund += EXPLORE * (draft + verify)
        if asked == 0:
            return
        self._scouts += (step.verified - 1 - step.drafted - self._scouts) / RECENT
        self._branching |= depth < step.drafted
        if asked not in self._shapes:
            self._shapes[asked] = _Shape()
            request.until_settled = 0
        shape = self._shapes[asked]
        if step.drafted:
            shape.drafts += 1
            shape.nodes += (step.drafted - shape.nodes) / min(shape.drafts, RECENT)
            shape.depth = max(shape.depth, depth)
        # A drafter that ended its tree by itself missed the level after; one that filled the budget did not.
        ended = step.drafted == 0 or (step.drafted < min(asked, stats.remaining) and depth < shape.depth)
        passed = step.accepted + 1 if step.drafted else 0
        weight = self._width(step.drafted) if step.drafted else 1.0
        for counts in (self._everything, request.task.counts, request.counts):
            counts.add(passed, step.accepted < depth or ended, weight)

    def _width(self, nodes: float) -> float:
        """How much rarer a miss is in a branching tree of that size than in a chain."""
        return max(nodes, 1.0) ** WIDTH if self._branching else 1.0

    def _settle(self, request: _Running, stats: Stats) -> None:
        """What all budgets cost from here on, up to twice as large as any draft so far."""
        request.task.settle()
        context = stats.context_tokens
        request.plain = self._verify.at(1, context) + self._draft.at(0, 0)
        empty = self._verify.at(1 + self._scouts, context) + self._futile.at(0, 0)
        largest = max([1.0, *(shape.nodes for shape in self._shapes.values())])
        request.options = []
        for budget in BUDGETS:
            if budget <= 2 * largest:
                nodes, depth = self._delivered(budget)
                found = self._draft.at(budget, 0) + self._verify.at(1 + nodes + self._scouts, context)
                request.options.append(_Option(budget, depth, self._width(nodes), found, empty))

    def _delivered(self, budget: int) -> tuple[float, float]:
        """Nodes and depth to expect of a budget: what it gave, or what those around it lead to expect."""
        known = sorted(asked for asked, shape in self._shapes.items() if shape.drafts)
        if budget in known:
            return self._shapes[budget].nodes, self._shapes[budget].depth
        if not known:
            return budget, budget
        if budget > known[-1]:
            shape = self._shapes[known[-1]]
            if shape.nodes < FILLED * known[-1]:
                return shape.nodes, shape.depth
            return budget, shape.depth + (math.log2(budget / known[-1]) if self._branching else budget - known[-1])
        above = next(asked for asked in known if asked > budget)
        nodes = min(budget, self._shapes[above].nodes)
        if not self._branching:
            return nodes, nodes
        # The depth of a tree grows with the logarithm of its nodes; half a node has none.
        below = max((asked for asked in known if asked < budget), default=None)
        low, base = (0, 0.5) if below is None else (self._shapes[below].depth, below)
        share = math.log(budget / base) / math.log(above / base)
        return nodes, min(nodes, low + (self._shapes[above].depth - low) * share)

    def _choose(self, request: _Running, stats: Stats) -> int:
        miss = request.task.misses(request.counts)
        deepest = min(stats.remaining - 1, LEVELS - 1)
        for option in request.options:
            option.time = option.empty + (1 - miss[0]) * (option.found - option.empty)
            option.accepted = _accepted(miss, min(option.depth, deepest), option.width)
        best = max(request.options, key=lambda option: option.rate)
        if best.rate <= 1 / request.plain:
            return self._probe(request, best)
        right_so_far = request.counts.missed[1] < 0.5 * request.counts.tried[1]
        return (
            self._trial(request, best, miss, deepest) if right_so_far and stats.remaining > TOO_SHORT else best.budget
        )

    def _probe(self, request: _Running, option: _Option) -> int:
        """Once in a while, ask a drafter that does not pay again."""
        price = option.time - (1 + option.accepted) * request.plain
        if request.task.fund >= price:
            request.task.fund -= price
            return option.budget
        request.resting = min(int((price - request.task.fund) / (PROBE * request.plain)), LONGEST_REST)
        return 0

    def _trial(self, request: _Running, best: _Option, miss: Sequence[float], deepest: int) -> int:
        """Once in a while, try a budget that might be better than the best one known."""
        tried = request.task.counts.tried
        hopeful = [rate * (1 - DOUBT / math.sqrt(1 + times)) for rate, times in zip(miss, tried, strict=True)]
        choice, hope, price = best, best.rate, 0.0
        for option in request.options:
            loss = option.time * (1 - option.rate / best.rate)
            rate = (1 + _accepted(hopeful, min(option.depth, deepest), option.width)) / option.time
            if option is not best and loss <= self._fund and rate > hope:
                choice, hope, price = option, rate, loss
        self._fund -= price
        return choice.budget


def _accepted(miss: Sequence[float], depth: float, width: float) -> float:
    """Tokens to expect of a draft of that depth, the last level counted in part."""
    reach, tokens = 1 - miss[0], 0.0
    for level in range(1, math.ceil(depth) + 1):
        right = (1 - miss[level]) * width
        reach *= right / (right + miss[level])
        tokens += reach * min(1.0, depth - level + 1)
    return tokens
