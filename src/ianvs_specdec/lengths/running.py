"""What a length that learns keeps of each running request, and of those that ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ianvs_specdec.lengths.evidence import Floats, Subject

if TYPE_CHECKING:
    from ianvs_specdec.decoding.scheduling import Stats

REST = 40
"""Steps between two moments at which a request may begin to speculate. At the boundary, noise would have it change with
every step: so it does once in 20 steps on average. New requests have such a moment at their first step."""
STEADY, SELDOM = 0.1, 4 * REST
"""The share of the steps since times last changed for which nothing new is tried, and the most of them."""
OUTPUTS = 100
"""Outputs over which their length is averaged."""


@dataclass(eq=False, slots=True)
class Running:
    """One request: what is known of it, how many tokens it held at the ``start`` and which step that was (``begun``),
    its budget, the steps since it last began to speculate, and what asking it again in the latest step was thought to
    cost. ``trial`` is its budget in a trial; ``tried``: it has speculated in one only."""

    subject: Subject
    start: int
    begun: int = 0
    budget: int = 0
    since: int = REST
    probed: float = 0.0
    trial: int = 0
    tried: bool = False

    @property
    def resting(self) -> bool:
        """Whether it should not begin to speculate. After a trial it may go on."""
        return self.budget == 0 and self.since % REST > 0 and not self.tried

    @property
    def stopped(self) -> bool:
        """Whether it has begun and stopped of late."""
        return self.budget == 0 and self.since < REST and not self.tried

    def settle(self, budget: int) -> None:
        """The next step verifies so many draft tokens."""
        self.since = 0 if (budget and not self.budget) or self.tried else self.since + 1
        self.budget, self.tried = budget, False

    def experiment(self, budget: int) -> None:
        """The next step, of a trial, verifies so many. Its moment to begin is not lost for that."""
        self.tried = self.tried or budget > self.budget == 0
        self.since += self.resting


def paces(running: Sequence[Running], stats: Sequence[Stats], now: int) -> Floats:
    """Tokens of a step of each request before step ``now``. Of one that has just begun, it is what all of them have."""
    emitted = np.array([one.context_tokens - request.start for request, one in zip(running, stats, strict=True)])
    steps = np.array([now - request.begun for request in running])
    # Each step brings a token at least.
    usual = max(float(emitted.sum() / max(steps.sum(), 1)), 1.0)
    result: Floats = (emitted + usual) / (steps + 1)
    return result


def patience(steady: int) -> float:
    """Steps from one trial to the next, where times have been as they are for so many: what has been so for long will
    be so for long."""
    return max(REST, min(STEADY * steady, SELDOM))


class Outputs:
    """How long outputs are."""

    def __init__(self) -> None:
        self._ended, self._average, self._early = 0, 0.0, 0.0

    def add(self, tokens: int, early: bool) -> None:
        """One ended with so many, ``early`` if more would have been permitted."""
        self._ended += 1
        share = 1 / min(self._ended, OUTPUTS)
        self._average += share * (tokens - self._average)
        self._early += share * (early - self._early)

    @property
    def going_on(self) -> float:
        """How likely another token is behind one, where that is not known: as ``left`` has it, at any time the same."""
        return 1 - self._early / max(self._average, 1.0)

    def missed(self, stats: Stats, emitted: float) -> float:
        """Tokens that a step with a draft has of what the request's drafter has missed, where each step emits so many.
        What was missed is read once, for all steps to come; what a step emits is read with every draft."""
        missed = stats.unread_tokens - emitted
        return missed / max(self.left(stats) / emitted, 1.0) if missed > 0 else 0.0

    def left(self, stats: Stats) -> float:
        """About how many tokens a request will still emit: where outputs end after so many on average, and not all at
        the same length, it is as many at any time."""
        return min(stats.remaining, self._average) if self._ended else stats.remaining
