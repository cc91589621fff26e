"""Learning while queries are answered: how far each model's answers are from what a trained router's score promises.

Gaussian process regression on the residuals of the feedback. A residual is what an answer was worth (0 to 1) minus what
the score lets expect, which is a line for each model (``Level``), fitted to the first feedback. Two residuals are alike
as far as their queries are: of the same group, with the same runs of letters, with like hidden states where a probe
reads them (``kinship``), or just both queries. Where nothing like a query has been seen, nothing is corrected, so that
learning about one kind of query does not unlearn another. Edge and cloud have a part of it in common, since a question
that is hard is hard for both.

An observation ages by as many newer ones as there are like it, and the older it is, the noisier it counts: what changed
is learned anew where it changed, and what is rarely asked is not forgotten for that.

Source: C. Rasmussen and C. Williams, Gaussian Processes for Machine Learning (2006), chapter 2; the covariance of the
two models is that of E. Bonilla et al., Multi-task Gaussian Process Prediction (2007).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ianvs_specdec.routing.learned.grams import BITS, GramRows, Grams, Weighting, weigh
from ianvs_specdec.routing.learned.kinship import Seen, States
from ianvs_specdec.routing.outcomes.recorded import Floats

SIDES = ("edge", "cloud")
CAPACITY = 640
"""Observations that are kept: of more, the one that has aged most is dropped."""
EVERY = 8
"""At least so many observations come between two solutions, and a ``PART`` of those that are kept."""
PART = 16
AGE = 40.0
"""After so many newer ones that are like it, an observation is e times as noisy."""
OLDEST = 6.0
FIRST = 16
"""From so many on, at each power of 2, texts are compared anew with the frequencies known by then."""
LEAST = 0.05
"""Of the variance of an answer's worth."""
MARGIN = 0.02
TINY = 1e-9


@dataclass(frozen=True)
class Strength:
    """Variance of what residuals have in common: all of them, those of a group, those of the same text, those of the
    same state. ``shared``: correlation between the two models.
    """

    common: float = 0.01
    group: float = 0.1
    text: float = 0.1
    shared: float = 0.8
    state: float = 0.1


@dataclass(frozen=True, eq=False)
class Experience:
    """One feedback. ``side``: index in ``SIDES``; ``score``: the trained router's; ``worth``: of the answer, 0 to 1;
    ``state``: what a probe makes of the query (see ``states``), float64 [columns], or None.
    """

    grams: Grams
    group: str
    side: int
    score: float
    worth: float
    state: Floats | None = None


class TrainedLevel:
    """What answers are worth by the trained router's score: a line for each model.

    It begins as what a router's score is by contract, the probability that the edge's answer will not do, and follows
    the first observations of the model (ridge regression). Then it is fixed: what changes later is learned as change.
    """

    LINES = ((1.0, -1.0), (0.8, 0.0))
    FIXED = 100
    STRENGTH = 8.0

    def __init__(self) -> None:
        self.lines = np.array(self.LINES)
        self.seen = np.zeros(2, dtype=np.int64)
        self.moments = np.zeros((2, 2, 2))
        self.products = np.zeros((2, 2))

    def observe(self, observation: Experience) -> None:
        side = observation.side
        if self.seen[side] >= self.FIXED:
            return
        x = np.array([1.0, observation.score])
        self.seen[side] += 1
        self.moments[side] += np.outer(x, x)
        self.products[side] += observation.worth * x
        prior = np.array(self.LINES[side])
        penalty = self.STRENGTH * np.array([[1.0, 0.5], [0.5, 1.0]])
        self.lines[side] = np.linalg.solve(self.moments[side] + penalty, self.products[side] + penalty @ prior)

    def residual(self, observation: Experience) -> float:
        """What the answer was worth beyond what is expected by its query's score."""
        side, score = np.array([observation.side]), np.array([observation.score])
        return observation.worth - float(self.expected(side, score)[0])

    def expected(self, sides: NDArray[np.intp], scores: Floats) -> Floats:
        """float64 [observations], from 0.02 to 0.98."""
        return np.clip(self.lines[sides, 0] + self.lines[sides, 1] * scores, 0.02, 0.98)

    @property
    def slope(self) -> float:
        """How much more the cloud's answer is worth, compared to the edge's, where the score is 1 higher."""
        return float(np.clip(self.lines[1, 1] - self.lines[0, 1], 0.5, 2.0))


@dataclass(frozen=True, eq=False)
class Solution:
    """What has been learned up to some feedback; not changed any more, so that any thread may use it.

    ``common``, ``by_group`` and ``by_text`` (float64 [2**BITS]) are corrections of how much more the cloud's answer is
    worth than the edge's; ``slope``: how much that is where the score is 1 higher.
    """

    common: float = 0.0
    by_group: Mapping[str, float] = field(default_factory=dict)
    by_text: Floats | None = None
    idf: Floats | None = None
    slope: float = 1.0
    by_state: Seen | None = None

    def correction(self, grams: Grams, group: str, state: Floats | None = None) -> float:
        """What is to be added to the trained router's score."""
        found = self.common + self.by_group.get(group, 0.0)
        if self.by_text is not None and self.idf is not None:
            found += float(self.by_text[grams.buckets] @ weigh(grams, self.idf))
        if self.by_state is not None and state is not None:
            found += self.by_state(state)
        return found / self.slope

    def score(self, score: float, grams: Grams, group: str, state: Floats | None = None) -> float:
        """The trained router's score of a query, corrected: from 0 to 1."""
        return squash(unsquash(score) + self.correction(grams, group, state))


class OnlineLearner:
    """Deterministic: what it knows depends on the observations and their order. Not thread-safe."""

    def __init__(self, strength: Strength | None = None, capacity: int = CAPACITY, every: int = EVERY) -> None:
        self.capacity, self.every = capacity, every
        self.count = self._solved = 0
        self.strength = strength or Strength()
        self.level = TrainedLevel()
        self.memory: list[Experience] = []
        self.ages: Floats = np.zeros(0)
        self.weighting = Weighting()
        # Between each two observations: the cosine of their texts, and 1 if they are of the same group.
        self._text, self._group = np.zeros((capacity, capacity)), np.zeros((capacity, capacity))
        self._states = States(capacity)
        self._reweigh(self.weighting.idf())
        self.solution = Solution()

    def observe(self, observation: Experience) -> None:
        """Learn from one feedback. The solution follows when there are some new ones."""
        self.count += 1
        self.weighting.count(observation.grams)
        self.level.observe(observation)
        weights = weigh(observation.grams, self._idf)
        similar = GramRows(self._weighted).similarities(observation.grams.buckets, weights)
        kin = np.array([bool(observation.group) and past.group == observation.group for past in self.memory], float)
        mine = np.array([past.side == observation.side for past in self.memory], bool)
        like = self._states.alike(observation.state, len(self.memory))
        self.ages = self.ages + mine * np.maximum(kin, np.maximum(similar, like))
        place = len(self.memory)
        if place < self.capacity:
            self.memory.append(observation)
            self._weighted.append((observation.grams.buckets, weights))
            self.ages = np.append(self.ages, 0.0)
        else:
            place = int(np.argmax(self.ages))
            self.memory[place], self._weighted[place] = observation, (observation.grams.buckets, weights)
            self.ages[place] = 0.0
        for matrix, row, own in ((self._text, similar, 1.0), (self._group, kin, float(bool(observation.group)))):
            matrix[place, : len(row)] = matrix[: len(row), place] = row
            matrix[place, place] = own
        self._states.put(place, observation.state, like)
        if self.count >= FIRST and self.count & (self.count - 1) == 0:
            self._reweigh(self.weighting.idf())
        if self.count - self._solved >= max(self.every, len(self.memory) // PART):
            self.solve()

    def solve(self) -> None:
        """Take all observations into account."""
        self._solved = self.count
        if not self.memory:
            return
        sides, size = self._sides(), len(self.memory)
        alike = self.strength.common + self.strength.group * self._group[:size, :size]
        alike += self.strength.text * self._text[:size, :size]
        alike += self.strength.state * self._states.kernel(size)
        between = np.array([[1.0, self.strength.shared], [self.strength.shared, 1.0]])
        covariance = between[sides[:, None], sides] * alike
        expected = self.level.expected(sides, np.array([past.score for past in self.memory]))
        noise = np.maximum(expected * (1.0 - expected), LEAST) * np.exp(np.minimum(self.ages / AGE, OLDEST))
        covariance[np.diag_indices_from(covariance)] += noise
        residuals = np.array([past.worth for past in self.memory]) - expected
        shares = (between[1] - between[0])[sides] * np.linalg.solve(covariance, residuals)
        by_group: dict[str, float] = {}
        for past, share in zip(self.memory, shares, strict=True):
            if past.group:
                by_group[past.group] = by_group.get(past.group, 0.0) + self.strength.group * float(share)
        common = self.strength.common * float(shares.sum())
        by_text = self.strength.text * GramRows(self._weighted).combined(shares)
        by_state = self._states.seen(self.strength.state * shares)
        self.solution = Solution(common, by_group, by_text, self._idf, self.level.slope, by_state)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All of it, for ``of_arrays``. Takes all observations into account first."""
        self.solve()
        seen, memory = np.flatnonzero(self.weighting.frequency), self.memory
        return {
            "sizes": np.array([len(past.grams.buckets) for past in memory], dtype=np.int64),
            "buckets": np.concatenate([past.grams.buckets for past in memory] or [np.zeros(0, np.int32)]),
            "counts": np.concatenate([past.grams.counts for past in memory] or [np.zeros(0)]),
            "groups": np.array([past.group for past in memory], dtype=np.str_),
            "sides": self._sides(),
            "scores": np.array([past.score for past in memory]),
            "worths": np.array([past.worth for past in memory]),
            "states": self._states.rows(len(memory)).astype(np.float32),
            "ages": self.ages,
            "totals": np.array([self.count, self.weighting.texts, self.capacity, self.every], dtype=np.int64),
            "strength": np.array(astuple(self.strength)),
            "frequent": seen,
            "frequency": self.weighting.frequency[seen],
            "idf": self._idf[seen],
            "idf_unseen": np.delete(self._idf, seen)[:1],
            "lines": self.level.lines,
            "seen": self.level.seen,
            "moments": self.level.moments,
            "products": self.level.products,
        }

    @classmethod
    def of_arrays(cls, found: Mapping[str, NDArray[Any]]) -> OnlineLearner:
        """Raises KeyError or ValueError for arrays that are not those of a learner."""
        count, texts, capacity, every = (int(value) for value in found["totals"])
        learner = cls(Strength(*(float(value) for value in found["strength"])), capacity, every)
        ends = np.cumsum(found["sizes"])[:-1]
        texts_of = zip(np.split(found["buckets"], ends), np.split(found["counts"], ends), strict=True)
        columns = (found[name].tolist() for name in ("groups", "sides", "scores", "worths"))
        learner.memory = [
            Experience(Grams(*grams), *rest) for grams, *rest in zip(texts_of, *columns, strict=len(found["sizes"]) > 0)
        ]
        # Routers that were saved by an earlier version have no states.
        states = found.get("states", np.zeros((0, 0))).astype(np.float64)
        if states.shape[1]:
            pairs = zip(learner.memory, states, strict=True)
            learner.memory = [replace(past, state=state if state.any() else None) for past, state in pairs]
        for place, past in enumerate(learner.memory):
            learner._states.put(place, past.state, learner._states.alike(past.state, place))
        learner.count, learner.ages = count, found["ages"]
        learner.weighting.texts = texts
        learner.weighting.frequency[found["frequent"]] = found["frequency"]
        for name in ("lines", "seen", "moments", "products"):
            setattr(learner.level, name, found[name])
        idf = np.full(1 << BITS, found["idf_unseen"][0])
        idf[found["frequent"]] = found["idf"]
        learner._reweigh(idf)
        learner.solve()
        return learner

    def _sides(self) -> NDArray[np.intp]:
        return np.array([past.side for past in self.memory], dtype=np.intp)

    def _reweigh(self, idf: Floats) -> None:
        """Compare all texts anew."""
        self._idf = idf
        self._weighted = [(past.grams.buckets, weigh(past.grams, idf)) for past in self.memory]
        rows, size = GramRows(self._weighted), len(self.memory)
        for place, (buckets, weights) in enumerate(self._weighted):
            self._text[place, :size] = rows.similarities(buckets, weights)
        groups = np.array([past.group for past in self.memory])
        self._group[:size, :size] = (groups[:, None] == groups) & (groups != "")


def squash(x: float) -> float:
    """A number around 0 to 1 as one between them, in the same order; between the margins it is the same."""
    if x < MARGIN:
        return MARGIN * math.exp((x - MARGIN) / MARGIN)
    if x > 1.0 - MARGIN:
        return 1.0 - MARGIN * math.exp((1.0 - MARGIN - x) / MARGIN)
    return x


def unsquash(y: float) -> float:
    """The number whose ``squash`` this is."""
    if y < MARGIN:
        return MARGIN + MARGIN * math.log(max(y, TINY) / MARGIN)
    if y > 1.0 - MARGIN:
        return 1.0 - MARGIN - MARGIN * math.log(max(1.0 - y, TINY) / MARGIN)
    return y
