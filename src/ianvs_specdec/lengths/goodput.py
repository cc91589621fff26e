"""As many draft tokens as pay: the budgets with the most expected output per expected second, over all requests.

Goodput as the objective is from SmartSpec (Liu et al. 2024, arXiv 2406.14066); here nothing is profiled beforehand, and
each request gets its own share of the rows that a step verifies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ianvs_specdec.lengths.costs import DraftCosts, Floats, StepCosts
from ianvs_specdec.lengths.evidence import LEVELS, Evidence, Trials
from ianvs_specdec.lengths.shapes import Shapes

if TYPE_CHECKING:
    from ianvs_specdec.decoding.load import Finished, Load, Share, Stats

WARM = 3
"""Steps before the first draft: the first of all also warms up."""
PLAN = 8
"""Steps for which a plan holds if hardly anybody comes or leaves: making one takes a part of a small model's step."""
PLANS = 4
"""Plans for which what is known of the sizes of drafts is not worked out anew, unless larger ones are possible."""
PROMPTS = 8
"""Steps over which what the rows of prompts take is averaged."""
REST, CLEAR = 40, 1.5
"""Steps between two moments at which a request begins to speculate, unless drafts bring so many times what they are
thought to. At the boundary, noise would have it change with every step: so it does once in 20 steps on average."""
JOINED = 0.25
"""A plan no longer holds when the number of requests has changed by more than that share."""
PROBE = 0.006
"""The share of the time that may be lost on asking drafters again that did not pay."""
LITTLE = 1e-3
"""Rows: what a budget that brings no more nodes than the one before counts as."""
TOO_SHORT = 8
"""Tokens: with fewer to come, what such a trial teaches is of no use to this request."""


@dataclass(eq=False, slots=True)
class _Running:
    """One request: the rows of evidence of its task and its own, its budget, and the steps since it last began to
    speculate."""

    rows: tuple[int, int]
    budget: int = 0
    since: int = REST
    planned: bool = False

    @property
    def resting(self) -> bool:
        """Whether it should not begin to speculate."""
        return self.budget == 0 and self.since < REST

    def settle(self, budget: int) -> None:
        """The next steps verify so many draft tokens."""
        if (budget and not self.budget) or not self.planned:
            self.since = 0
        self.budget, self.planned = budget, True


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
        self._evidence, self._shapes = Evidence(), Shapes()
        self._options = _Options.of(self._shapes)
        self._until_plan = self._until_options = 0
        self._planned = self._passed = 0
        self._looked = REST
        self._fund = 0.0
        self._latest: dict[int, int] = {}
        self._learned: list[tuple[tuple[int, int], int, bool, float]] = []

    @classmethod
    def from_argument(cls, argument: str) -> Goodput:
        if argument:
            raise ValueError("goodput takes no argument: it learns everything from the run")
        return cls()

    def budgets(self, load: Load) -> Sequence[int]:
        running = [self._known(stats) for stats in load.running]
        if self._verify.samples < WARM:
            return [0] * len(running)
        new = [request for request in running if not request.planned]
        changed = abs(len(running) - self._planned) > JOINED * self._planned
        if self._until_plan <= 0 or changed or any(request.rows[0] not in self._latest for request in new):
            self._settle(running)
            probes = self._plan(load, running)
            self._until_plan, self._planned = 1 if probes else PLAN, len(running)
        else:
            for request in new:
                request.settle(self._latest[request.rows[0]])
        self._until_plan -= 1
        self._passed += 1
        self._looked += 1
        for request in running:
            request.since += 1
        if self._looked >= REST and self._verify.outdated(len(running)):
            # When times have changed, a step without drafts tells what drafts are worth.
            self._looked = self._until_plan = 0
            return [0] * len(running)
        # Where one token is to come, the step itself brings it.
        return [
            request.budget if stats.remaining > 1 else 0 for request, stats in zip(running, load.running, strict=True)
        ]

    def learn(self, finished: Finished) -> None:
        rows = finished.rows
        self._fund += PROBE * (finished.draft_seconds + finished.verify_seconds)
        if not rows:
            return
        if finished.prompt_rows:
            own = float(self._verify.at(np.array([rows]), finished.context)[0])
            taken = max(finished.verify_seconds - own, 0.0) / finished.prompt_rows
            self._prompt_row += (taken - self._prompt_row) / PROMPTS
        else:
            changed = self._verify.add(rows, finished.verify_seconds, finished.context)
            if changed != 1:
                self._draft.scale(changed)
        asked = [share for share in finished.shares if share.budget]
        if asked or self._until_plan == 0:
            depth, nodes = max((share.depth for share in asked), default=0), sum(share.step.drafted for share in asked)
            self._draft.add(len(asked), depth, nodes, sum(share.behind for share in asked), finished.draft_seconds)
        for share in asked:
            if not share.over:
                self._learn(share)

    def _learn(self, share: Share) -> None:
        step = share.step
        ended, width = self._shapes.add(share)
        passed = step.accepted + 1 if step.drafted else 0
        self._learned.append((share.stats.kept.rows, passed, step.accepted < share.depth or ended, width))

    def _settle(self, running: Sequence[_Running]) -> None:
        """Work out anew what is known, from what was learned since the last time."""
        self._evidence.wait(self._passed)
        self._passed = 0
        if self._learned:
            rows, *told = zip(*self._learned, strict=True)
            self._evidence.learn(rows, Trials(*told))
            self._learned.clear()
        if self._evidence.crowded:
            self._evidence.keep(request.rows[1] for request in running)
        self._until_options -= 1
        if self._until_options <= 0 or len(self._shapes.budgets()) > len(self._options.budgets):
            self._options, self._until_options = _Options.of(self._shapes), PLANS

    def _known(self, stats: Stats) -> _Running:
        if stats.kept is None:
            stats.kept = _Running((self._evidence.task(stats.task), self._evidence.request()))
        request: _Running = stats.kept
        return request

    def _plan(self, load: Load, running: Sequence[_Running]) -> bool:
        """Settle each request's budget. Returns whether one is only probing."""
        options, number = self._options, len(running)
        misses = self._evidence.misses([request.rows for request in running], options.levels)
        left = np.array([stats.remaining - 1.0 for stats in load.running])
        gains, found = options.gains(misses, left), 1 - misses[:, 0]
        # Of drafts that should rest, only a clear gain counts.
        gains = gains / np.array([[CLEAR if request.resting else 1.0] for request in running])
        more, more_rows = gains.copy(), options.more_rows * found[:, None]
        more[:, 1:] -= gains[:, :-1]
        # A larger budget is not taken before a smaller one: where gains grow faster later on, they are spread.
        worth = np.minimum.accumulate(more / more_rows, axis=1)
        worth[left < 1] = 0.0
        order = np.argsort(-worth, axis=None, kind="stable")[: np.count_nonzero(worth > 0)]
        who, place = np.divmod(order, len(options.budgets))
        # What a drafter has to catch up with serves all steps to come.
        behind = np.array([stats.behind for stats in load.running]) / np.maximum(left / (1 + gains[:, 0]), 1.0)
        begins = place == 0
        # The deepest draft has its time for itself: with each budget as the largest one, a line of its own.
        within = place <= np.arange(len(options.budgets))[:, None]
        asked, nodes = _sums(within * begins), _sums(within * more_rows[who, place])
        depth = np.maximum.accumulate(_from_none(within * options.depths[place] * found[who]), axis=1)
        drafting = self._draft.at(asked, depth, nodes, _sums(within * begins * behind[who]))
        verifying = self._verify.at(number + nodes + asked * options.scouts, _context(load))
        tokens = number + _sums(within * more[who, place])
        rate = tokens / (drafting + verifying + load.prompt_rows * self._prompt_row)
        line, best = np.unravel_index(np.argmax(rate), rate.shape)
        taken = np.flatnonzero(within[line, :best])
        chosen = np.full(number, -1)
        np.maximum.at(chosen, who[taken], place[taken])
        plan: list[int] = np.where(chosen < 0, 0, options.budgets[chosen]).astype(int).tolist()
        probes = self._probe(running, load, plan)
        for request, budget in zip(running, plan, strict=True):
            request.settle(budget)
            self._latest[request.rows[0]] = budget
        return probes

    def _probe(self, running: Sequence[_Running], load: Load, plan: list[int]) -> bool:
        """Once in a while, ask the drafter of a request for the least that is not asked otherwise."""
        for index, (request, stats) in enumerate(zip(running, load.running, strict=True)):
            resting = request.planned and (request.budget > 0 or request.since < REST)
            if not (plan[index] or resting) and stats.remaining > TOO_SHORT:
                price = self._price(load, stats)
                if self._fund < price:
                    return False
                self._fund -= price
                plan[index] = int(self._options.budgets[0])
                return True
        return False

    def _price(self, load: Load, stats: Stats) -> float:
        """Seconds that one more request with the smallest budget costs, if nothing of it is accepted."""
        options, none = self._options, np.zeros(1)
        rows = len(load.running) + np.array([0.0, options.more_rows[0] + options.scouts])
        verify = self._verify.at(rows, _context(load))
        draft = self._draft.at(none + 1, options.depths[:1], options.more_rows[:1], none + stats.behind)
        return float(verify[1] - verify[0] + draft[0] - self._draft.weights[0])


def _from_none(values: Floats) -> Floats:
    """``[lines, values]``, each line with a 0 before it."""
    return np.concatenate([np.zeros((len(values), 1)), values], axis=1)


def _sums(values: Floats) -> Floats:
    """For each line, the sums of the first none, one, two, ... values."""
    return _from_none(np.cumsum(values, axis=1))


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

    @property
    def levels(self) -> int:
        """Of evidence that tells about them."""
        return min(int(np.ceil(self.depths.max())) + 1, LEVELS)

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
        miss = misses[:, None, 1:]
        right = (1 - miss) * self.widths[:, None]
        reach = np.cumprod(right / (right + miss), axis=2)
        depths = np.minimum(self.depths, np.maximum(left, 0.0)[:, None])
        counted = np.minimum(np.maximum(depths[:, :, None] - np.arange(miss.shape[2]), 0.0), 1.0)
        result: Floats = (1 - misses[:, :1]) * (reach * counted).sum(2)
        return result
