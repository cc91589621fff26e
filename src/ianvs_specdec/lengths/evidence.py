"""How often guesses are right: by depth, and more or less easily for each task and each running request.

The log odds of a miss are a sum: what is common to all, the task, the request, the depth. Each term is known with a
mean and a variance, which trials sharpen and time blurs: a Kalman filter for yes and no, one term at a time (as rating
systems have it: Glickman 1999, Applied Statistics 48).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LEVELS = 64
"""Depths that are told apart; deeper ones are like the deepest."""

TASKS, FURTHER = 256, "\0"
"""Kinds of requests that are told apart: their names come from users, so their number is bounded."""

EASIEST, HARDEST, PER_UNIT = -8, 4, 4
"""Difficulties are reckoned with from so many log odds of a miss to so many, with so many steps for each: drafts may be
copies of hundreds of tokens, and what is right once in fifty times is useless already."""
DIFFICULTIES = np.arange(EASIEST * PER_UNIT, HARDEST * PER_UNIT + 1) / PER_UNIT

STRIDE = 1.5
"""Standard deviations by which a term may move at a time: what trials say of it holds near where it was."""

CERTAIN = math.log(0.02 / 0.98)
"""Log odds of a miss below which a hit is not worth learning from: once in fifty times."""

SETTLED = 32
"""Steps for which the rates by depth hold before they are worked out anew."""


@dataclass(frozen=True)
class Term:
    """``spread`` is the standard deviation, in log odds, of what nothing is known of yet; after ``memory`` steps
    without trials, as little is known again."""

    spread: float
    memory: int

    @property
    def variance(self) -> float:
        return self.spread**2

    @property
    def blur(self) -> float:
        """By how much the variance grows with each step."""
        return self.variance / self.memory


EVERYTHING, DEPTH = Term(1.0, 2000), Term(0.7, 1000)
TASK, REQUEST = Term(1.0, 2000), Term(0.6, 40)
"""What is asked of a server changes within hours, the text at hand within sentences."""

FIRST_GUESS = -0.85
"""Log odds of a miss before anything is known: three of ten."""


class Belief:
    """One term of the log odds, and what was heard of it since it was last settled."""

    __slots__ = ("_blur", "_heard", "_most", "_news", "_settled", "mean", "variance")

    def __init__(self, term: Term, mean: float = 0.0) -> None:
        self.mean, self.variance = mean, term.variance
        self._most, self._blur = term.variance, term.blur
        self._heard = self._news = 0.0
        self._settled = 0

    def hear(self, surprise: float, informed: float, others: float) -> None:
        """Trials missed by so much more than was expected, and tell so much. The less certain the ``others`` are, the
        terms that they depend on as well, the less they say about this one."""
        share = 1 / (1 + informed * others)
        self._heard += informed * share
        self._news += surprise * share

    def settle(self, now: int) -> None:
        """Work out what is known at step ``now``."""
        variance = self.variance + (now - self._settled) * self._blur
        if variance > self._most:
            variance = self._most
        self._settled = now
        stride = STRIDE * math.sqrt(variance)
        self.variance = variance = variance / (1 + variance * self._heard)
        step = variance * self._news
        self.mean += stride if step > stride else -stride if step < -stride else step
        self._heard = self._news = 0.0


class Known:
    """What is known of everything, a task or a request: whether there is a draft at all, and whether a guess of it is
    wrong."""

    __slots__ = ("none", "wrong")

    def __init__(self, term: Term, mean: float = 0.0) -> None:
        self.none, self.wrong = Belief(term, mean), Belief(term, mean)

    def settle(self, now: int) -> None:
        self.none.settle(now)
        self.wrong.settle(now)


@dataclass(eq=False, slots=True)
class Subject:
    """What is known of one request."""

    task: Known
    own: Known = field(default_factory=lambda: Known(REQUEST))


class Evidence:
    """What came of drafts, and what is therefore to be expected of the next ones."""

    def __init__(self) -> None:
        self._all = Known(EVERYTHING, FIRST_GUESS)
        self._tasks: dict[str, Known] = {}
        # What is harder for all shows at the first level, with which the others are compared.
        self._most = np.where(np.arange(LEVELS), DEPTH.variance, 0.0)
        self._depth, self._depth_variance = np.zeros(LEVELS), self._most.copy()
        self._trials: list[tuple[int, int, bool, float]] = []
        self._settled = self.now = 0
        """``now``: steps so far."""
        self._tabulate(1)

    @property
    def misses(self) -> Floats:
        """How often the i-th guess of a draft is wrong if those before it are right, ``[difficulties, levels]``."""
        return self._misses

    def request(self, task: str) -> Subject:
        """A new request; from ``TASKS`` kinds on, all further ones are one."""
        if task not in self._tasks and len(self._tasks) >= TASKS:
            task = FURTHER
        if task not in self._tasks:
            self._tasks[task] = Known(TASK)
        return Subject(self._tasks[task])

    def difficulty(self, subject: Subject) -> int:
        """The index into ``DIFFICULTIES`` of the request's guesses."""
        return _place(self._all.wrong.mean + subject.task.wrong.mean + subject.own.wrong.mean)

    def found(self, subject: Subject) -> float:
        """How likely its drafter has any guess."""
        return 1 - _share(self._all.none.mean + subject.task.none.mean + subject.own.none.mean)

    def step(self) -> None:
        """One more step has passed."""
        self.now += 1

    def learn(self, subject: Subject, drafted: bool, accepted: int, failed: bool, width: float) -> None:
        """Of a draft of the request, if there was one, so many tokens were accepted; ``failed``: the next one was
        wrong. In a tree a miss is so many times rarer than in a chain as it is wide."""
        everything, task, own = self._all, subject.task, subject.own
        odds = everything.none.mean + task.none.mean + own.none.mean
        if odds > CERTAIN or not drafted:
            miss = _share(odds)
            self._hear(everything.none, task.none, own.none, (not drafted) - miss, miss * (1 - miss))
        if drafted and (tried := min(accepted + failed, LEVELS)):
            if tried > len(self._expected[0]):
                self._tabulate(tried)
            first, second, third = everything.wrong, task.wrong, own.wrong
            odds = first.mean + second.mean + third.mean
            place = _place(odds if width == 1.0 else odds - math.log(width))
            self._trials.append((place, tried, failed, first.variance + second.variance + third.variance))
            surprise = failed - self._expected[place][tried - 1]
            self._hear(first, second, third, surprise, self._informed[place][tried - 1])

    def settle(self) -> None:
        """Work out anew what is known of everything, of tasks and of depths; of requests it is after every draft."""
        self._all.settle(self.now)
        for task in self._tasks.values():
            task.settle(self.now)
        if self._trials and self.now - self._settled >= min(SETTLED, self._settled + 1):
            self._learn_depths()
            self._tabulate(len(self._expected[0]))

    def _hear(self, everything: Belief, task: Belief, own: Belief, surprise: float, informed: float) -> None:
        if surprise > 0 and everything.mean + task.mean + own.mean > HARDEST:
            return
        first, second, third = everything.variance, task.variance, own.variance
        everything.hear(surprise, informed, second + third)
        task.hear(surprise, informed, first + third)
        own.hear(surprise, informed, first + second)
        own.settle(self.now)

    def _learn_depths(self) -> None:
        place, tried, failed, others = (np.array(column) for column in zip(*self._trials, strict=True))
        self._trials.clear()
        levels = self._misses.shape[1]
        miss, level = self._misses[place], np.arange(levels)
        made = level < tried[:, None]
        missed = (level == tried[:, None] - 1) & failed[:, None]
        informed = made * miss * (1 - miss)
        share = 1 / (1 + informed * others[:, None])
        aged = self._depth_variance + (self.now - self._settled) * DEPTH.blur
        self._depth_variance = np.minimum(aged, self._most)
        stride = STRIDE * np.sqrt(self._depth_variance[:levels])
        self._settled = self.now
        self._depth_variance[:levels] /= 1 + self._depth_variance[:levels] * (informed * share).sum(0)
        step = self._depth_variance[:levels] * ((missed - made * miss) * share).sum(0)
        self._depth[:levels] += np.clip(step, -stride, stride)

    def _tabulate(self, levels: int) -> None:
        self._misses = _shares(DIFFICULTIES[:, None] + self._depth[:levels])
        self._expected: list[list[float]] = np.cumsum(self._misses, axis=1).tolist()
        self._informed: list[list[float]] = np.cumsum(self._misses * (1 - self._misses), axis=1).tolist()


def _place(log_odds: float) -> int:
    bounded = EASIEST if log_odds < EASIEST else HARDEST if log_odds > HARDEST else log_odds
    return round((bounded - EASIEST) * PER_UNIT)


def _share(log_odds: float) -> float:
    return 1 / (1 + math.exp(-log_odds))


def _shares(log_odds: Floats) -> Floats:
    result: Floats = 1 / (1 + np.exp(-log_odds))
    return result
