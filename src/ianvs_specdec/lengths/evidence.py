"""How often guesses are right, learned by depth and at three ranges: the running request, its task, everything."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LEVELS = 65
"""Level 0 is whether there is a draft at all, level i whether its i-th token is accepted after those before it."""

REQUEST, TASK, EVERYTHING = 10, 50, 100
"""Trials that each range remembers. The text at hand changes within sentences, what is asked of a server in hours."""

PRIOR = 2.0
"""Trials that what is known of a wider range counts for against those of a narrower one."""

STALE = 40
"""Steps after which a third is left of what was learned before them, if nothing new is."""

LITTLE = 10.0
"""Trials that are left of any number in the end: what was known of a task is still the best guess, but few new trials
outweigh it."""

_LEVEL = np.arange(LEVELS)


class Counts:
    """Trials and misses per level; of old ones, ``memory`` trials are left."""

    def __init__(self, memory: int) -> None:
        self._keep = 1 - 1 / memory
        self.tried = np.zeros(LEVELS)
        self.missed = np.zeros(LEVELS)

    def fade(self, steps: int, least: float) -> None:
        """So many steps have passed; down to ``least`` trials, old ones count less."""
        kept = np.maximum(math.exp(-steps / STALE), np.minimum(least / np.maximum(self.tried, LITTLE), 1.0))
        self.tried *= kept
        self.missed *= kept

    @staticmethod
    def learn(whose: Sequence[Counts], trials: Trials) -> None:
        """Learn from drafts; ``whose`` they are, all with the same memory, in the order of ``trials``."""
        places = {counts: place for place, counts in enumerate(dict.fromkeys(whose))}
        belongs = np.zeros((len(places), len(whose)))
        belongs[[places[counts] for counts in whose], np.arange(len(whose))] = 1
        tried = belongs @ trials.tried
        kept = whose[0]._keep ** tried
        tried += np.array([counts.tried for counts in places]) * kept + belongs @ trials.surplus
        missed = np.array([counts.missed for counts in places]) * kept + belongs @ trials.missed
        for counts, now_tried, now_missed in zip(places, tried, missed, strict=True):
            counts.tried, counts.missed = now_tried, now_missed


class Trials:
    """What drafts tell, one row for each and a column for each level: where it was tried and where it missed.

    The levels below ``passed`` held. Where ``failed``, the next one did not; that miss counts for ``weight`` trials,
    ``surplus`` of them beyond the one.
    """

    def __init__(self, passed: Sequence[int], failed: Sequence[bool], weight: Sequence[float]) -> None:
        level = np.array(passed)[:, None]
        fails = (level == _LEVEL) & np.array(failed)[:, None]
        self.tried = ((level > _LEVEL) | fails).astype(np.float64)
        self.missed = fails * np.array(weight)[:, None]
        self.surplus = self.missed - fails


class Everything:
    """All requests, and what is known of each task, which leans on it."""

    def __init__(self) -> None:
        self.counts = Counts(EVERYTHING)
        self.tasks: dict[str, Counts] = {}
        self.common = np.full(LEVELS, 0.5)

    def task(self, name: str) -> Counts:
        return self.tasks.setdefault(name, Counts(TASK))

    def settle(self, steps: int) -> None:
        """Work out anew how often each level misses, so many steps after the last time. One that nobody reached is
        about as good as the one before it."""
        for counts in (self.counts, *self.tasks.values()):
            counts.fade(steps, LITTLE)
        tried, missed = self.counts.tried, self.counts.missed
        pooled = (missed[1:].sum() + 1) / (tried[1:].sum() + 2)
        before = 0.5
        for level in range(LEVELS):
            prior = before if level < 2 else (before + pooled) / 2
            self.common[level] = rate = (missed[level] + PRIOR * prior) / (tried[level] + PRIOR)
            before = rate if level else 0.5

    def misses(self, requests: Sequence[tuple[Counts, Counts]]) -> Floats:
        """How often each level misses for each request, given its task's counts and its own: ``[requests, LEVELS]``."""
        tried, missed = (np.array([getattr(task, name) for task, _ in requests]) for name in ("tried", "missed"))
        by_task = (missed + self.common) / (tried + 1)
        tried, missed = (np.array([getattr(own, name) for _, own in requests]) for name in ("tried", "missed"))
        result: Floats = (missed + PRIOR * by_task) / (tried + PRIOR)
        return result
