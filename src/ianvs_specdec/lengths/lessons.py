"""Finished steps on their way to be learned from: at once, or several together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ianvs_specdec.lengths.savings import Allowance

if TYPE_CHECKING:
    from ianvs_specdec.decoding.load import Finished

LEARNING, FROM_EACH, LEARNED = 3e-5, 6e-6, 0.005
"""Learning from a step, and choosing anew by what was learned, takes about so many seconds and so many for each
request, and should take no more than that share of the time. A small model's steps leave most of the code and data of
both no place in the caches, so several steps at once take less than as many by themselves."""
TOGETHER = 8
"""Steps that are learned from together at the most: what was longer ago is no news."""

Lesson = tuple["Finished", bool]
"""A step, and whether it was made to learn from it."""


class Lessons:
    def __init__(self) -> None:
        self._allowance = Allowance(LEARNING, LEARNED, 1)
        self._steps: list[Lesson] = []

    def add(self, finished: Finished, made: bool, due: bool, together: bool) -> list[Lesson]:
        """A step is over, ``made`` to learn from it or not. Returns the steps to learn from now: all of them if that is
        ``due``, else if there is time for it, but ``together`` as many as may be."""
        self._allowance.earn(finished.seconds)
        self._allowance.price = LEARNING + FROM_EACH * len(finished.shares)
        self._steps.append((finished, made))
        due = due or made or len(self._steps) == TOGETHER
        if (together and not due) or not self._allowance.pay(anyway=due):
            return []
        steps, self._steps = self._steps, []
        return steps
