"""How often guesses are right, learned from what came of drafts.

A guess of request ``r`` at level ``j`` of its draft is wrong with probability ``m_r f_j w`` if those before it were
right: ``m_r`` is how hard the request is, ``f_j`` how much harder level ``j`` is than the first one, and ``w`` how many
fewer are wrong where a tree holds several guesses for a level. A draft whose first ``n`` levels were looked at up to
one that was wrong is one miss in ``sum of f_j w`` trials. Misses in trials are Poisson counts, whose rate has a Gamma
distribution: so what is known of ``m_r`` is two numbers, misses and trials, that are added up and forgotten with time
(Gelman et al., "Bayesian Data Analysis", section 2.6). A request begins as its task is, and a task as most are.

For the planner requests differ by ``m_r`` only, in steps of a fifth: ``MISS_RATES``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ianvs_specdec.decoding.load import Share

Floats = NDArray[np.float64]

BUDGETS = np.array([0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64])
"""Lengths to choose among: between two of them, the rate of tokens hardly differs."""
LEVELS = int(BUDGETS[-1])
MISS_RATES = np.geomspace(1 / 256, 1.0, 32)
_PLACES_PER_LOG = (len(MISS_RATES) - 1) / math.log(256)
PRIOR_MISSES, FEWEST = 0.3, 2.0
"""Before anything is known, seven of ten guesses are right, as of most drafters; that counts for as much as so many
trials. Few, since a request is soon told from others by its own drafts."""
TASK_MEMORY, REQUEST_MEMORY = 200, 40
"""Steps after which half of what was heard is forgotten: some answers, and a paragraph of one."""
PROFILE_WEIGHT, PROFILE_KEPT = 10.0, 0.98
"""Misses by which a level's difficulty is drawn to that of the level before; what is kept of it by each new table."""
TREE_WIDTH = 0.25
"""In a branching tree of ``n`` nodes, about ``n ** -0.25`` as many guesses are wrong as in a chain: of 16 nodes there
are two or three for each level, and a second guess is right in half of the cases where the first one is not."""
MOST_TASKS = 256
"""Names of tasks come from users, so their number is bounded."""


@dataclass(slots=True)
class MissRate:
    """``mean`` is believed as if it came from so many ``trials``, of which half are forgotten after ``half_life``
    steps, up to ``FEWEST``."""

    mean: float
    memory: int
    trials: float = FEWEST
    heard: int = 0

    def learn(self, misses: float, trials: float, now: int) -> None:
        kept = max(self.trials * 0.5 ** ((now - self.heard) / self.memory), FEWEST)
        self.trials, self.heard = min(kept + trials, self.memory), now
        self.mean = (kept * self.mean + misses) / (kept + trials)


@dataclass(eq=False, slots=True)
class RequestState:
    """What is kept of a running request: its budget by the plan, too."""

    task: MissRate
    own: MissRate
    start: int
    budget: int = 0

    @property
    def difficulty(self) -> int:
        """The place of its miss rate among ``MISS_RATES``."""
        place = len(MISS_RATES) - 1 + round(math.log(max(self.own.mean, MISS_RATES[0])) * _PLACES_PER_LOG)
        return min(max(place, 0), len(MISS_RATES) - 1)


class AcceptanceModel:
    """``found`` is how often a drafter has anything to propose at all."""

    def __init__(self) -> None:
        self._tasks: dict[str, MissRate] = {}
        self.found = 1.0
        self._factors = np.ones(LEVELS)
        self._missed, self._tried = [0.0] * LEVELS, [0.0] * LEVELS
        """By level: misses there, and misses to be expected in drafts that were looked at up to there."""
        self._nodes, self._depth = BUDGETS.astype(float), BUDGETS.astype(float)
        self._drafted = BUDGETS == 0
        self._branching = False
        self.tabulate()

    def begin(self, task: str, start: int, now: int) -> RequestState:
        name = task if task in self._tasks or len(self._tasks) < MOST_TASKS else ""
        known = self._tasks.setdefault(name, MissRate(PRIOR_MISSES, TASK_MEMORY))
        return RequestState(known, MissRate(known.mean, REQUEST_MEMORY, heard=now), start)

    def learn(self, request: RequestState, share: Share, now: int) -> None:
        """What came of a draft."""
        nodes, depth, accepted = share.step.drafted, share.depth, share.step.accepted
        self.found += 0.02 * ((nodes > 0) - self.found)
        if not nodes:
            return
        self._shape(share.budget, nodes, depth)
        failed = accepted < depth
        tried = min(accepted + failed, LEVELS)
        mean = request.own.mean
        fewer = self._fewer(mean, nodes)
        self._tried[tried - 1] += fewer * mean
        self._missed[tried - 1] += failed
        trials = fewer * self._trials[tried - 1]
        request.own.learn(failed, trials, now)
        request.task.learn(failed, trials, now)

    def _fewer(self, misses: Any, nodes: Any) -> Any:
        """How many times as many guesses are wrong in a tree of so many nodes as the ``misses`` in a chain."""
        if not self._branching:
            return 1.0
        share = np.maximum(nodes, 1) ** -TREE_WIDTH
        return share / (1 - misses + misses * share)

    def _shape(self, budget: int, nodes: int, depth: int) -> None:
        index = int(np.searchsorted(BUDGETS, budget))
        if index < len(BUDGETS) and BUDGETS[index] == budget:
            rate = 0.1 if self._drafted[index] else 1.0
            self._drafted[index] = True
            self._nodes[index] += rate * (nodes - self._nodes[index])
            self._depth[index] += rate * (depth - self._depth[index])
            self._branching = self._branching or depth < nodes

    def tabulate(self) -> None:
        """Work out anew what each budget brings a request of each difficulty: ``budgets``, up to twice as large as any
        draft so far, their ``nodes`` and ``depth``, and the accepted ``tokens``, ``[difficulties, budgets]``."""
        expected = np.cumsum(self._tried[::-1])[::-1]
        for level in range(1, LEVELS):
            before = PROFILE_WEIGHT * self._factors[level - 1]
            self._factors[level] = (before + self._missed[level]) / (PROFILE_WEIGHT + expected[level])
        self._missed, self._tried = ([PROFILE_KEPT * each for each in counts] for counts in (self._missed, self._tried))
        self._trials = np.cumsum(self._factors).tolist()
        last = int(np.flatnonzero(self._drafted)[-1])
        count = int(np.searchsorted(BUDGETS, max(2 * self._nodes[last], 4), "right"))
        known = BUDGETS[self._drafted]
        self.nodes, self.depth = (np.interp(BUDGETS[:count], known, each[self._drafted]) for each in (self._nodes, self._depth))
        if not self._branching and self._nodes[last] > 0.9 * BUDGETS[last]:
            self.nodes[last:] = self.depth[last:] = BUDGETS[last:count]
        elif self._branching:
            self.nodes[last:] = BUDGETS[last:count]
        self.budgets = BUDGETS[:count]
        levels = np.arange(math.ceil(self.depth.max()))
        misses = MISS_RATES[:, None]
        wrong = (misses * self._fewer(misses, self.nodes))[:, :, None] * self._factors[: len(levels)]
        reached = np.cumprod(1 - np.minimum(wrong, 1), axis=2)
        self.tokens = (reached * np.clip(self.depth[:, None] - levels, 0, 1)).sum(2)
