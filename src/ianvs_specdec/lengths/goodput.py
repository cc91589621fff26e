"""As many draft tokens as pay: the budget with the most expected output per expected second.

Goodput as the objective is from SmartSpec (Liu et al. 2024, arXiv 2406.14066); here nothing is profiled beforehand.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ianvs_specdec.lengths.costs import Timing
from ianvs_specdec.lengths.evidence import LEVELS, Counts, Task, Trust

if TYPE_CHECKING:
    from ianvs_specdec.decoding.contracts import Stats

BUDGETS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
SETTLE_EVERY = 8
"""Steps between two reckonings of what all budgets cost."""

EXPLORE, PROBE = 0.005, 0.005
"""Shares of the time that may be lost on budgets that might be better than the best one known, and, per task, on asking
a drafter again that did not pay."""

RISK = 0.25
"""How far, in plain steps, a draft may go beyond what the evidence carries: a new task starts with small drafts."""

LEAN, DOUBT = 6.0, 0.4
"""How many steps a budget's own record needs to outweigh the model of all budgets, and how much better than the model
a budget without a record might be."""

WIDTH = 0.2
"""In a branching tree of n nodes a miss is n ** WIDTH times rarer than in a chain, until its record says more."""


@dataclass
class _Shape:
    """What came of asking for a budget."""

    asked: int = 0
    nodes: float = 0.0
    depth: int = 0
    expected: float = 0.0
    accepted: float = 0.0


@dataclass
class _Option:
    """A budget as the next step sees it: expected depth, how much rarer misses are than in a chain, seconds."""

    budget: int
    depth: float
    width: float
    factor: float
    doubt: float
    found: float
    empty: float
    time: float = 0.0
    rate: float = 0.0


class Goodput:
    confidence = 0.0

    def __init__(self) -> None:
        self._verify = Timing(growth=0.02)
        self._draft = Timing(outlook=0.5)
        self._futile = Timing()
        self._everything = Counts(0.99)
        self._tasks: dict[str, Task] = {}
        self._trust = Trust()
        self._shapes: dict[int, _Shape] = {}
        self._branching = False
        self._scouts = 0.0
        self._options: list[_Option] = []
        self._age = 0
        self._stats: Stats | None = None
        self._seen = 0
        self._resting = 0
        self._fund = 0.0
        self._expected = 0.0

    @classmethod
    def from_argument(cls, argument: str) -> Goodput:
        if argument:
            raise ValueError("goodput takes no argument: it learns everything from the run")
        return cls()

    def budget(self, stats: Stats) -> int:
        if stats is self._stats and self._resting > 0:
            self._resting -= 1
            return 0
        self._catch_up()
        if stats is not self._stats:
            self._stats, self._seen = stats, 0
            self._request = Counts(0.9)
            if stats.task not in self._tasks:
                self._tasks[stats.task] = Task(self._everything)
            self._task = self._tasks[stats.task]
            self._age = 0
        self._resting = 0
        if stats.remaining < 2 or not self._verify.known(1, samples=2):
            return 0
        if self._age <= 0:
            self._settle(stats)
            self._age = SETTLE_EVERY
        self._age -= 1
        return self._choose(stats)

    def _catch_up(self) -> None:
        stats = self._stats
        if stats is not None:
            for index in range(self._seen, len(stats.steps)):
                self._learn(stats, index)
            self._seen = len(stats.steps)

    def _learn(self, stats: Stats, index: int) -> None:
        step, asked, depth = stats.steps[index], stats.budgets[index], stats.depths[index]
        draft, verify = stats.draft_seconds[index], stats.verify_seconds[index]
        self._verify.add(step.verified, max(verify, 1e-9), stats.context_tokens)
        timing = self._draft if step.drafted or not asked else self._futile
        timing.add(asked if step.drafted else 0, max(draft, 1e-9), 0)
        self._task.fund += PROBE * (draft + verify)
        self._fund += EXPLORE * (draft + verify)
        if asked == 0:
            return
        self._scouts += (step.verified - 1 - step.drafted - self._scouts) * 0.1
        self._branching |= depth < step.drafted
        width = self._width(step.drafted)
        shape = self._shapes.get(asked)
        if shape is None:
            shape = self._shapes[asked] = _Shape()
            self._age = 0
        if step.drafted:
            shape.asked += 1
            shape.nodes += (step.drafted - shape.nodes) / min(shape.asked, 20)
            shape.depth = max(shape.depth, depth)
            shape.expected = shape.expected * 0.95 + self._expected
            shape.accepted = shape.accepted * 0.95 + step.accepted
        # A drafter that ended its tree by itself missed the level after; one that filled the budget did not.
        ended = step.drafted == 0 or (step.drafted < min(asked, stats.remaining) and depth < shape.depth)
        failed = step.accepted < depth or ended
        if step.drafted:
            request, task = self._request, self._task
            self._trust.learn(request.tried[1], request.missed[1], task.missing[1], width, step.accepted == 0)
        passed = step.accepted + 1 if step.drafted else 0
        for counts in (self._everything, self._task.counts, self._request):
            counts.add(passed, failed, width if step.drafted else 1.0)

    def _width(self, nodes: float) -> float:
        """How much rarer a miss is in a branching tree of that size than in a chain."""
        return max(nodes, 1.0) ** WIDTH if self._branching else 1.0

    def _settle(self, stats: Stats) -> None:
        self._task.settle()
        context = stats.context_tokens
        self._plain = self._verify.at(1, context) + self._draft.at(0, 0)
        empty = self._verify.at(1 + self._scouts, context) + self._futile.at(0, 0)
        largest = max([2.0, *(shape.nodes for shape in self._shapes.values())])
        self._options = []
        for budget in BUDGETS:
            if budget > 2 * largest:
                break
            nodes, depth = self._delivered(budget)
            shape = self._shapes.get(budget)
            asked, factor = (0, 1.0) if shape is None else (shape.asked, 1.0)
            if shape is not None and self._branching:
                factor = (shape.accepted + LEAN) / (shape.expected + LEAN)
            draft = self._draft.at(budget, 0)
            found = self._verify.at(1 + nodes + self._scouts, context)
            doubt = DOUBT / (math.sqrt(1 + asked) if self._branching else 1 + asked)
            self._options.append(_Option(budget, depth, self._width(nodes), factor, doubt, draft + found, empty))

    def _delivered(self, budget: int) -> tuple[float, float]:
        """Nodes and depth to expect of a budget."""
        shape = self._shapes.get(budget)
        if shape is not None and shape.asked:
            return shape.nodes, shape.depth
        known = sorted(b for b, shape in self._shapes.items() if shape.asked)
        if not known:
            return budget, budget
        above = next((b for b in known if b > budget), None)
        below = next((b for b in reversed(known) if b < budget), None)
        if above is None:
            shape = self._shapes[known[-1]]
            if shape.nodes < 0.9 * known[-1]:
                return shape.nodes, shape.depth
            more = budget - known[-1] if not self._branching else math.log2(budget / known[-1])
            return budget, shape.depth + more
        top = self._shapes[above]
        nodes = min(budget, top.nodes)
        if not self._branching:
            return nodes, nodes
        low, base = (self._shapes[below].depth, below) if below is not None else (0, 0.5)
        return nodes, min(nodes, low + (top.depth - low) * math.log(budget / base) / math.log(above / base))

    def _choose(self, stats: Stats) -> int:
        miss = self._misses()
        deepest = min(stats.remaining - 1, LEVELS - 1)
        plain_rate = 1 / self._plain
        known = self._request.tried[1] + self._trust.trials(self._task.counts.tried[1])
        bold = self._plain * (1 + RISK * (1 + known) / max(miss[1], 0.01))
        best, rate, accepted = None, plain_rate, 0.0
        runner_up, runner_up_rate, runner_up_accepted = None, 0.0, 0.0
        for option in self._options:
            option.time = option.empty + (1 - miss[0]) * (option.found - option.empty)
            expected = self._tokens(miss, min(option.depth, deepest), option.width) * option.factor
            option.rate = (1 + expected) / option.time
            if option.time > bold and runner_up is not None:
                break
            if option.rate > rate:
                best, rate, accepted = option, option.rate, expected
            if option.rate > runner_up_rate:
                runner_up, runner_up_rate, runner_up_accepted = option, option.rate, expected
        self._expected = (accepted / best.factor if best else 0.0) / max(1 - miss[0], 1e-6)
        if best is None:
            return self._probe(runner_up, runner_up_accepted, miss[0])
        if stats.remaining > 8 and self._request.missed[1] < 0.5 * self._request.tried[1]:
            return self._trial(best, rate, miss, deepest, bold)
        return best.budget

    def _misses(self) -> list[float]:
        request, missing, trust = self._request, self._task.missing, self._trust
        miss = list(missing)
        for level in range(LEVELS):
            if not request.tried[level]:
                break
            miss[level] = trust.miss(request.tried[level], request.missed[level], missing[level])
        return miss

    def _tokens(self, miss: list[float], depth: float, width: float) -> float:
        reach, tokens = 1 - miss[0], 0.0
        for level in range(1, int(depth) + 1):
            right = (1 - miss[level]) * width
            reach *= right / (right + miss[level])
            if reach < 0.01:
                return tokens
            tokens += reach
        if depth > int(depth):
            tokens += (depth - int(depth)) * reach * (1 - miss[int(depth) + 1])
        return tokens

    def _probe(self, option: _Option | None, accepted: float, miss0: float) -> int:
        """Once in a while, ask a drafter that does not pay again."""
        if option is None:
            return 0
        price = option.time - (1 + accepted) * self._plain
        if self._task.fund >= price:
            self._task.fund -= price
            self._expected = accepted / max(1 - miss0, 1e-6) / option.factor
            return option.budget
        self._resting = min(int((price - self._task.fund) / (PROBE * self._plain)), 16)
        return 0

    def _trial(self, best: _Option, rate: float, miss: list[float], deepest: int, bold: float) -> int:
        """Once in a while, try a budget that might be better than the best one known."""
        tried = self._task.counts.tried
        hopeful = [m * (1 - DOUBT / math.sqrt(1 + n)) for m, n in zip(miss, tried, strict=True)]
        choice, choice_hope = best, rate
        for option in self._options:
            if option.time > bold:
                break
            price = option.time * (1 - option.rate / rate)
            if price > self._fund or option is best:
                continue
            hope = self._tokens(hopeful, min(option.depth, deepest), option.width) * option.factor * (1 + option.doubt)
            if (1 + hope) / option.time > choice_hope:
                choice, choice_hope = option, (1 + hope) / option.time
        if choice is not best:
            self._fund -= choice.time * (1 - choice.rate / rate)
            self._expected = self._tokens(miss, min(choice.depth, deepest), choice.width) / max(1 - miss[0], 1e-6)
        return choice.budget
