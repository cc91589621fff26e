"""How often guesses are right, learned by depth and at three ranges: the running request, its task, everything."""

from __future__ import annotations

import math

LEVELS = 65
"""Level 0 is whether there is a draft at all, level i whether its i-th token is accepted after those before it."""

STRENGTHS = (0.2, 2.0, 64.0)
"""How many trials the task's rates may count for against those of the running request."""


class Counts:
    """Trials and misses per level; old ones fade by ``keep`` with every new one."""

    def __init__(self, keep: float) -> None:
        self._keep = keep
        self.tried = [0.0] * LEVELS
        self.missed = [0.0] * LEVELS

    def add(self, passed: int, failed: bool, weight: float) -> None:
        """The levels below ``passed`` held; ``failed``: that one did not, and its miss counts for ``weight``."""
        for level in range(min(passed + failed, LEVELS)):
            self.tried[level] = self.tried[level] * self._keep + 1
            self.missed[level] *= self._keep
        if failed and passed < LEVELS:
            self.tried[passed] += weight - 1
            self.missed[passed] += weight


class Task:
    """What is known of one kind of request: miss rates that lean on those of all requests."""

    def __init__(self, everything: Counts) -> None:
        self._everything = everything
        self.counts = Counts(0.98)
        self.fund = 0.0
        self.missing: list[float] = []
        self.settle()

    def settle(self) -> None:
        """Work the miss rates out anew. A level nobody reached is as good as the one before it."""
        everything, own = self._everything, self.counts
        pooled = (sum(everything.missed[1:]) + 1) / (sum(everything.tried[1:]) + 2)
        common = [0.0] * LEVELS
        for level in range(LEVELS):
            prior = 0.5 if level < 2 else (common[level - 1] + pooled) / 2
            strength = 2 if level < 2 else 4
            common[level] = (everything.missed[level] + strength * prior) / (everything.tried[level] + strength)
        foreseen = sum(tried * miss for tried, miss in zip(own.tried[2:], common[2:], strict=True))
        worse = (sum(own.missed[2:]) + 1) / (foreseen + 1)
        rates = []
        for level in range(LEVELS):
            prior = common[level] if level < 2 else min(common[level] * worse, 1.0)
            strength = 2 if level < 2 else 4
            rates.append((own.missed[level] + strength * prior) / (own.tried[level] + strength))
        self.missing = rates


class Trust:
    """How much a request's own evidence tells, found by prediction: each strength is weighted by how well it foresaw
    the first guesses of recent steps."""

    def __init__(self) -> None:
        self._losses = [0.0, 0.0, 0.0]
        self.weights = [1 / 3, 1 / 3, 1 / 3]

    def learn(self, tried: float, missed: float, prior: float, width: float, failed: bool) -> None:
        for i, strength in enumerate(STRENGTHS):
            miss = (missed + strength * prior) / (tried + strength)
            miss = min(max(miss / (miss + (1 - miss) * width), 0.02), 0.98)
            self._losses[i] = self._losses[i] * 0.98 - math.log(miss if failed else 1 - miss)
        least = min(self._losses)
        raw = [math.exp(least - loss) for loss in self._losses]
        self.weights = [weight / sum(raw) for weight in raw]

    def trials(self, tried: float) -> float:
        """How many trials of the running request the task's ``tried`` are worth."""
        return sum(w * min(s, tried) for w, s in zip(self.weights, STRENGTHS, strict=True))

    def miss(self, tried: float, missed: float, prior: float) -> float:
        return sum(
            weight * (missed + strength * prior) / (tried + strength)
            for weight, strength in zip(self.weights, STRENGTHS, strict=True)
        )
