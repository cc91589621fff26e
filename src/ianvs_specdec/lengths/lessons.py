"""Finished steps on their way to be learned from: at once, or several together."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ianvs_specdec.lengths.savings import Allowance

if TYPE_CHECKING:
    from ianvs_specdec.decoding.scheduling import Finished

LEARNING, FROM_EACH, LEARNED = 3e-5, 6e-6, 0.005
"""Learning from a step, and choosing anew by what was learned, takes about so many seconds and so many for each
request, and should take no more than that share of the time. A small model's steps leave most of the code and data of
both no place in the caches, so several steps at once take less than as many by themselves."""
TOGETHER = 8
"""Steps that are learned from together at the most: what was longer ago is no news."""


class Lesson(NamedTuple):
    """A step, whether it was made to learn from it, and whether to learn from what came of its drafts."""

    finished: Finished
    made: bool
    of_drafts: bool


class Lessons:
    """Steps that were not learned from yet, and the time that there is for that."""

    def __init__(self) -> None:
        self._allowance = Allowance(LEARNING, LEARNED, 1)
        self._steps: list[Lesson] = []

    def add(self, finished: Finished, made: bool, due: bool, same: bool) -> list[Lesson]:
        """A step is over, ``made`` to learn from it or not. Returns the steps to learn from now: all of them if that is
        ``due``, else if there is time for it. Where all requests draft the ``same``, what comes of drafts changes
        nothing until the next plan: then as many as may be are learned from together, and steps for whose drafts there
        is no time tell nothing of these."""
        self._allowance.earn(finished.seconds)
        self._allowance.price = LEARNING + FROM_EACH * len(finished.shares)
        anyway = due or made or (not same and len(self._steps) == TOGETHER - 1)
        pays = self._allowance.pay(anyway)
        self._steps.append(Lesson(finished, made, pays or not same))
        if not (anyway or len(self._steps) == TOGETHER or (pays and not same)):
            return []
        steps, self._steps = self._steps, []
        return steps
