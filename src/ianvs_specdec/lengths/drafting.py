"""What drafts cost, learned from the times of the run itself."""

from __future__ import annotations

import math
from operator import mul

import numpy as np

from ianvs_specdec.lengths.costs import WARM
from ianvs_specdec.lengths.sizes import NOISE, OUTLIER, Amount, Floats

COLD = 12
"""First steps with drafts: if one of them is clearly faster than those before, these were not yet what drafts take."""
MUCH = 4
"""Where drafters have so many times as many tokens to catch up with as a step can have left them, the time tells what
that takes, and nothing else: what was not used for long is slow at first. If that is thought to take nothing as it
is, a shorter time tells of the rest."""


class DraftCosts:
    """Time of drafting as a sum: so much for each step, each request, whether it drafts or not, each that drafts, each
    level of the deepest draft, each token drafted, and each token that a drafter had to catch up with; none of them
    below 0. Where one of many drafts, what the others take would seem to be for that draft.

    Times are in units of ``StepCosts.speed``, about that of a step without drafts. A filter as there, over the terms:
    what the steps cannot tell apart is shared out by how much each term may be.
    """

    SPREADS = (0.1, 0.003, 0.05, 0.3, 0.02, 0.003)
    """What the terms are about, at first."""
    MEMORY = 400
    """Steps after which a term may be anything again."""

    def __init__(self) -> None:
        self._most = [spread**2 for spread in self.SPREADS]
        self._drafts = 0
        self._forget()

    def _forget(self) -> None:
        """What drafts so far have taken tells nothing of those to come."""
        self.weights = [0.0] * len(self.SPREADS)
        self._variances = self._most
        self._before = 0.0

    def add(self, requests: int, asked: int, depth: int, nodes: int, behind: float, taken: float) -> None:
        """Drafting took that long in a step of so many ``requests``, of which so many were ``asked``."""
        terms = (1.0, requests, asked, depth, nodes, behind)
        expected = sum(map(mul, self.weights, terms))
        self._drafts += bool(asked)
        if self._drafts <= COLD and asked and taken < expected * math.exp(-OUTLIER):
            self._forget()
            expected = 0.0
        surprise, limit = taken - expected, OUTLIER * max(expected, self.SPREADS[0])
        # One slow step is not believed, two in a row are.
        if surprise > max(limit, self._before):
            self._before, surprise = surprise, max(limit, self._before)
        else:
            self._before = max(surprise, 0.0)
        variances = self._variances
        if self._drafts > WARM and behind > MUCH * asked * (1 + depth) and (surprise > 0 or self.weights[-1]):
            variances = [0.0] * (len(variances) - 1) + variances[-1:]
        heard = list(map(mul, variances, terms))
        doubt = sum(map(mul, heard, terms)) + NOISE * max(expected, expected + surprise) ** 2
        gain = surprise / doubt
        self.weights = [max(weight + gain * one, 0.0) for weight, one in zip(self.weights, heard, strict=True)]
        self._variances = [
            min(variance - one * one / doubt + most / self.MEMORY, most)
            for variance, one, most in zip(self._variances, heard, self._most, strict=True)
        ]

    def at(
        self, requests: Amount, asked: Amount, depth: Amount, nodes: Amount, behind: Amount, hoped: bool = False
    ) -> Floats:
        """The time of each of several cases. What may be ``hoped`` for is less where little is known."""
        doubts = [math.sqrt(variance) * hoped for variance in self._variances]
        weights = (max(weight - doubt, 0.0) for weight, doubt in zip(self.weights, doubts, strict=True))
        step, each, call, level, node, late = weights
        drafts = call * asked + level * depth + node * nodes + late * behind
        return np.asarray(step + each * requests + drafts)

    def without(self, requests: int) -> float:
        """The time where so many requests draft nothing."""
        return self.weights[0] + self.weights[1] * requests
