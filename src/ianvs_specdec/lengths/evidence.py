"""How often guesses are right, learned by depth and at three ranges: the running request, its task, everything."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LEVELS = 65
"""Level 0 is whether there is a draft at all, level i whether its i-th token is accepted after those before it."""

REQUEST, TASK, EVERYTHING = 10, 50, 100
"""Trials that each range remembers. The text at hand changes within sentences, what is asked of a server in hours."""

PRIOR = 2.0
"""Trials that what is known of its task counts for against those of a request."""

TASKS, FURTHER = 256, "\0"
"""Kinds of requests that are told apart: their names come from users, so their number is bounded."""

STALE = 40
"""Steps after which a third is left of what was learned before them, if nothing new is."""

_LEVEL = np.arange(LEVELS)

LEFT = np.where(_LEVEL < 2, 20.0, 0.0)
"""Trials of a task that are left of any number in the end. Whether its drafts are right at all stays the best guess,
until a few new trials outweigh it. How deep they are right is tried again."""

_ALL = 0
"""The row of everything."""


class Evidence:
    """Trials and misses per level, one row of two tables for everything, each task and each running request.

    Rows are numbers that ``task`` and ``request`` give out; a request's is used again after ``keep``.
    """

    def __init__(self) -> None:
        self._tried = np.zeros((16, LEVELS))
        self._missed = np.zeros((16, LEVELS))
        self._keep = np.full(16, 1 - 1 / REQUEST)
        self._left = np.zeros((16, LEVELS))
        self._seen = np.zeros(16)
        self._free = list(range(15, 0, -1))
        self._tasks: dict[str, int] = {}
        self._lasting(_ALL, EVERYTHING)
        self._now = 0

    def task(self, name: str) -> int:
        """The row of a kind of request; from ``TASKS`` kinds on, all further ones are one."""
        if name not in self._tasks and len(self._tasks) >= TASKS:
            name = FURTHER
        if name not in self._tasks:
            self._tasks[name] = row = self.request()
            self._lasting(row, TASK)
        return self._tasks[name]

    def request(self) -> int:
        """A row for a new request."""
        if not self._free:
            rows = len(self._seen)
            self._tried, self._missed, self._left, self._keep, self._seen = (
                np.concatenate([table, np.zeros_like(table)])
                for table in (self._tried, self._missed, self._left, self._keep, self._seen)
            )
            self._keep[rows:] = 1 - 1 / REQUEST
            self._free = list(range(2 * rows - 1, rows - 1, -1))
        return self._free.pop()

    @property
    def crowded(self) -> bool:
        """Whether the rows of requests that have ended are needed."""
        return len(self._free) < len(self._seen) / 4

    def keep(self, requests: Iterable[int]) -> None:
        """Only these requests are still running."""
        used = {_ALL, *self._tasks.values(), *requests}
        gone = [row for row in range(len(self._seen)) if row not in used]
        self._tried[gone] = self._missed[gone] = 0.0
        self._free = gone[::-1]

    def wait(self, steps: int) -> None:
        """So many steps have passed."""
        self._now += steps

    def learn(self, rows: Sequence[tuple[int, int]], trials: Trials) -> None:
        """What came of drafts: for each the rows of its task and its request."""
        for places in zip(*rows, strict=True):
            self._learn(np.array(places), trials)
        self._learn(np.zeros(len(rows), dtype=np.intp), trials)

    def _learn(self, places: NDArray[np.intp], trials: Trials) -> None:
        rows = np.array(sorted(set(places.tolist())))
        whose = (places == rows[:, None]).astype(np.float64)
        more = whose @ trials.tried
        old, missed = self._faded(rows)
        kept = self._keep[rows, None] ** more
        self._tried[rows] = old * kept + more + whose @ trials.surplus
        self._missed[rows] = missed * kept + whose @ trials.missed
        self._seen[rows] = self._now

    def misses(self, rows: Sequence[tuple[int, int]], levels: int) -> Floats:
        """How often each of so many levels misses, for requests by the rows of task and request: ``[requests,
        levels]``.

        What is known of a wider range is the guess where a narrower one has few trials. A level that nobody reached is
        about as good as the one before it.
        """
        number = len(rows)
        tried, missed = self._faded(np.array([_ALL, *(task for task, _ in rows), *(own for _, own in rows)]), levels)
        common = np.array(_common(tried[0].tolist(), missed[0].tolist()))
        by_task = (missed[1 : number + 1] + common) / (tried[1 : number + 1] + 1)
        result: Floats = (missed[number + 1 :] + PRIOR * by_task) / (tried[number + 1 :] + PRIOR)
        return result

    def _faded(self, rows: NDArray[np.intp], levels: int = LEVELS) -> tuple[Floats, Floats]:
        """What is left of trials and misses by now."""
        tried, missed = self._tried[rows, :levels], self._missed[rows, :levels]
        kept = np.exp((self._seen[rows, None] - self._now) / STALE)
        kept = np.maximum(kept, np.minimum(self._left[rows, :levels] / np.maximum(tried, 1.0), 1.0))
        return tried * kept, missed * kept

    def _lasting(self, row: int, memory: int) -> None:
        self._keep[row], self._left[row] = 1 - 1 / memory, LEFT


def _common(tried: list[float], missed: list[float]) -> list[float]:
    pooled = (sum(missed[1:]) + 1) / (sum(tried[1:]) + 2)
    rates, before = list[float](), 0.5
    for level, (trials, misses) in enumerate(zip(tried, missed, strict=True)):
        prior = before if level < 2 else (before + pooled) / 2
        rate = (misses + PRIOR * prior) / (trials + PRIOR)
        rates.append(rate)
        before = rate if level else 0.5
    return rates


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
