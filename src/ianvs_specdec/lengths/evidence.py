"""How often guesses are right, learned by depth and at three ranges: the running request, its task, everything."""

from __future__ import annotations

from collections.abc import Sequence

LEVELS = 65
"""Level 0 is whether there is a draft at all, level i whether its i-th token is accepted after those before it."""

REQUEST, TASK, EVERYTHING = 10, 50, 100
"""Trials that each range remembers. The text at hand changes within sentences, what is asked of a server in hours."""

PRIOR = 2.0
"""Trials that what is known of a wider range counts for against those of a narrower one."""


class Counts:
    """Trials and misses per level; of old ones, ``memory`` trials are left."""

    def __init__(self, memory: int) -> None:
        self._keep = 1 - 1 / memory
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

    def rate(self, level: int, prior: float) -> float:
        """How often that level misses, by these trials and by what was thought before."""
        return (self.missed[level] + PRIOR * prior) / (self.tried[level] + PRIOR)


class Task:
    """What is known of one kind of request: miss rates that lean on those of all requests.

    ``fund``: the seconds that may be spent on asking a drafter again that does not pay for this task.
    """

    def __init__(self, everything: Counts) -> None:
        self._everything = everything
        self.counts = Counts(TASK)
        self.fund = 0.0
        self.missing: list[float] = []
        self.settle()

    def settle(self) -> None:
        """Work the miss rates out anew. A level nobody reached is about as good as the one before it."""
        everything = self._everything
        pooled = (sum(everything.missed[1:]) + 1) / (sum(everything.tried[1:]) + 2)
        common: list[float] = []
        for level in range(LEVELS):
            common.append(everything.rate(level, 0.5 if level < 2 else (common[-1] + pooled) / 2))
        self.missing = [self.counts.rate(level, prior) for level, prior in enumerate(common)]

    def misses(self, request: Counts) -> Sequence[float]:
        """The miss rates of a request of this task, as far as it has tried the levels itself."""
        reached = next((level for level, tried in enumerate(request.tried) if not tried), LEVELS)
        return [request.rate(level, self.missing[level]) for level in range(reached)] + self.missing[reached:]
