"""What drafts of each budget look like: how many nodes, how deep, how much a tree's branches help."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

from ianvs_specdec.decoding.scheduling import Share

BUDGETS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Numbers of draft tokens among which a length chooses."""
RECENT = 20
"""Drafts over which their size is averaged."""
FILLED = 0.9
"""A drafter that uses less of its budget than this share has nothing more to say at a larger one."""
WIDTH = 0.2
"""In a branching tree of n nodes a miss is about n ** WIDTH times rarer than in a chain."""


class Shapes:
    """Sizes and depths of drafts by their budgets. A drafter whose drafts have more nodes than levels is branching."""

    def __init__(self) -> None:
        self._known: dict[int, _Shape] = {}
        self._branching = False
        self._scouts, self._largest = 0.0, 1.0

    @property
    def scouts(self) -> float:
        """Rows on average that a draft has verified beside its nodes."""
        return self._scouts

    def add(self, share: Share) -> tuple[bool, float]:
        """What came of asking for a draft. Returns whether the drafter ended it by itself, short of its budget, which
        misses the level after; and how much rarer a miss is in its tree than in a chain."""
        step, budget, depth = share.step, share.budget, share.depth
        drafted = step.drafted
        shape = self._known.get(budget)
        if shape is None:
            shape = self._known[budget] = _Shape()
        self._scouts += (step.verified - 1 - drafted - self._scouts) / RECENT
        self._branching = self._branching or depth < drafted
        if not drafted:
            return True, 1.0
        shape.drafts += 1
        shape.nodes += (drafted - shape.nodes) / min(shape.drafts, RECENT)
        shape.depth = max(shape.depth, depth)
        self._largest = max(self._largest, shape.nodes)
        asked = min(budget, share.stats.remaining + step.emitted - 1)
        return drafted < asked and depth < shape.depth, self.width(drafted)

    def width(self, nodes: float) -> float:
        """How much rarer a miss is in a branching tree of that size than in a chain."""
        return max(nodes, 1.0) ** WIDTH if self._branching else 1.0

    @property
    def budget_count(self) -> int:
        """How many budgets may be tried."""
        return bisect_right(BUDGETS, 2 * self._largest)

    def budgets(self) -> Sequence[int]:
        """Those that may be tried: up to twice as large as any draft so far."""
        return BUDGETS[: self.budget_count]

    def of(self, budget: int) -> tuple[float, float]:
        """Nodes and depth to expect of a budget: what it gave, or what those around it lead to expect."""
        known = sorted(asked for asked, shape in self._known.items() if shape.drafts)
        if budget in known:
            return self._known[budget].nodes, self._known[budget].depth
        if not known:
            return budget, budget
        if budget > known[-1]:
            return self._larger(budget, known[-1])
        above = next(asked for asked in known if asked > budget)
        nodes = min(budget, self._known[above].nodes)
        if not self._branching:
            return nodes, nodes
        # The depth of a tree grows with the logarithm of its nodes; half a node has none.
        below = max((asked for asked in known if asked < budget), default=None)
        low, base = (0, 0.5) if below is None else (self._known[below].depth, below)
        share = math.log(budget / base) / math.log(above / base)
        return nodes, min(nodes, low + (self._known[above].depth - low) * share)

    def _larger(self, budget: int, largest: int) -> tuple[float, float]:
        shape = self._known[largest]
        if shape.nodes < FILLED * largest:
            return shape.nodes, shape.depth
        return budget, shape.depth + (math.log2(budget / largest) if self._branching else budget - largest)


class _Shape:
    """What came of asking for a budget: how often there was a draft, its nodes on average, its greatest depth."""

    def __init__(self) -> None:
        self.drafts, self.nodes, self.depth = 0, 0.0, 0
