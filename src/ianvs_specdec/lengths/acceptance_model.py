"""Acceptance of drafts, learned from verified ones.

Each guess of a request is wrong with probability ``m`` if those before it are right, so the number of accepted tokens
is geometric (Leviathan et al. 2023, arXiv 2211.17192). A draft of which ``n`` tokens were accepted is ``n`` trials
without a miss, and one with a miss if it was longer. The estimate of ``m`` is a mean with a number of trials (a Beta
distribution) that decays with time. A request starts with the mean of its task, a task with that of typical drafters. A
tree has several guesses per level, which are rarely all wrong.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ianvs_specdec.engine.length import RequestStep

Floats = NDArray[np.float64]

BUDGETS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Candidate budgets. Between two of them, tokens per second hardly differ."""
MISS_RATES = np.geomspace(1 / 256, 1.0, 32)
"""The distinguished difficulties, a fifth apart: the precision of 40 trials."""
PRIOR_MISSES, FEWEST = 0.3, 2.0
"""Miss rate of unknown tasks, and minimum trials of a mean: few, so that two or three drafts of a request correct
it."""
REQUEST_MEMORY, TASK_MEMORY = 40, 200
"""Maximum trials of a mean and its half-life in steps: a paragraph, and a few answers."""
TREE_WIDTH = 0.25
"""In a tree of ``n`` nodes, ``n ** -0.25`` times as many levels are wrong: 16 nodes have two or three guesses per
level, and half of the tokens that the first guess misses are the second."""
MAX_TASKS = 256
"""Users name tasks, so their number is limited."""


@dataclass(slots=True)
class MissRate:
    mean: float
    memory: int
    trials: float = FEWEST
    learned: int = 0

    def learn(self, misses: float, trials: float, now: int) -> None:
        kept = max(self.trials * 0.5 ** ((now - self.learned) / self.memory), FEWEST)
        self.mean = (kept * self.mean + misses) / (kept + trials)
        self.trials, self.learned = min(kept + trials, self.memory), now


@dataclass(eq=False, slots=True)
class RequestState:
    """State of a running request: ``start`` is its initial context, ``budget`` the plan's."""

    task: MissRate
    own: MissRate
    start: int
    budget: int = 0

    @property
    def difficulty(self) -> int:
        """Index of its miss rate in ``MISS_RATES``."""
        places = len(MISS_RATES) - 1
        place = places * (1 - math.log(max(self.own.mean, MISS_RATES[0])) / math.log(MISS_RATES[0]))
        return min(round(place), places)


class AcceptanceModel:
    """Expected results of each of the ``budgets``, which go up to twice the largest draft so far: average ``nodes`` and
    ``depth``, and accepted ``tokens [difficulties, budgets]`` if there is a draft, as in a fraction ``found`` of the
    steps."""

    def __init__(self) -> None:
        self._tasks: dict[str, MissRate] = {}
        self.found = 1.0
        self._shapes: dict[int, tuple[float, float]] = {0: (0.0, 0.0)}
        self._branching = False

    def begin(self, task: str, start: int, now: int) -> RequestState:
        name = task if task in self._tasks or len(self._tasks) < MAX_TASKS else ""
        known = self._tasks.setdefault(name, MissRate(PRIOR_MISSES, TASK_MEMORY))
        return RequestState(known, MissRate(known.mean, REQUEST_MEMORY, learned=now), start)

    def learn(self, state: RequestState, request: RequestStep, now: int) -> None:
        nodes, depth, accepted = request.step.drafted, request.depth, request.step.accepted
        self.found += 0.02 * ((nodes > 0) - self.found)
        if not nodes:
            return
        if request.budget in BUDGETS:
            before = self._shapes.get(request.budget, (nodes, depth))
            self._shapes[request.budget] = 0.9 * before[0] + 0.1 * nodes, 0.9 * before[1] + 0.1 * depth
        self._branching = self._branching or depth < nodes
        missed = accepted < depth
        trials = (accepted + missed) * float(self._fewer(state.own.mean, nodes))
        for rate in (state.own, state.task):
            rate.learn(missed, trials, now)

    def _fewer(self, misses: Any, nodes: Any) -> Any:
        """Ratio of wrong guesses in a tree of ``nodes`` nodes to the ``misses`` of chains."""
        if not self._branching:
            return 1.0
        share = np.maximum(nodes, 1) ** -TREE_WIDTH
        return share / (1 - misses + misses * share)

    def tabulate(self) -> None:
        """Update ``budgets`` and their expected results."""
        self._shape()
        misses = MISS_RATES[:, None]
        right = 1 - misses * self._fewer(misses, self.nodes)
        self.tokens = right * (1 - right**self.depth) / (1 - right)

    def _shape(self) -> None:
        largest = max(self._shapes)
        nodes, depth = self._shapes[largest]
        self.budgets = np.array([budget for budget in BUDGETS if budget <= max(2 * nodes, 4)])
        shapes = dict(self._shapes)
        if nodes > 0.9 * largest:
            # A drafter that fills its budget would fill a larger one. The depth of larger trees is unknown.
            shapes[BUDGETS[-1]] = BUDGETS[-1], depth if self._branching else BUDGETS[-1]
        known = sorted(shapes)
        self.nodes, self.depth = (
            np.interp(self.budgets, known, [shapes[budget][each] for budget in known]) for each in (0, 1)
        )
