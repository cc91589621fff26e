"""Online learning: Gaussian process regression on the residuals of the newest feedbacks.

A residual is the worth of an answer (0 to 1) minus the worth that the trained router's score promises. Residuals are
correlated as far as their queries are alike: by group, runs of letters, and a probe's hidden states. Where nothing like
a query has been seen, nothing is corrected. The residuals of edge and cloud are correlated, too.

An observation's noise grows with the number of newer ones like it: what changed is learned anew where it changed.

Source: C. Rasmussen and C. Williams, Gaussian Processes for Machine Learning (2006), chapter 2; the covariance of the
two models is that of E. Bonilla et al., Multi-task Gaussian Process Prediction (2007).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Query
from ianvs_specdec.routing.learned.classifier import Classifier
from ianvs_specdec.routing.learned.folder import LIFELONG_BASE, TrainedRouter, read_arrays
from ianvs_specdec.routing.learned.probe import ProbeClassifier
from ianvs_specdec.routing.learned.text_features import excerpt
from ianvs_specdec.routing.outcomes.hidden_states import Halves
from ianvs_specdec.routing.outcomes.recorded import Floats, text_of

SIDES = ("edge", "cloud")
CAPACITY = 640
"""The newest observations, which are kept."""
EVERY, PART = 8, 16
"""A new solution takes ``EVERY`` new observations, and a ``PART``-th of those that are kept."""
COMMON, GROUP, TEXT, STATE = 0.01, 0.1, 0.1, 0.1
"""Variance of what residuals have in common: all of them, those of a group, of the same text, of the same state."""
SHARED = 0.8
"""Correlation between the residuals of the two models."""
NARROW = 4.6
"""Of the Gaussian kernel of states of length 1: it is 0.5 where their cosine is 0.85."""
AGE, OLDEST = 40.0, 6.0
"""After ``AGE`` newer ones like it an observation is e times as noisy, up to e to the power of ``OLDEST``."""
CLOUD, PRIOR = 0.8, 20
"""Worth of a cloud's answer before the first feedback, and how many feedbacks that counts as."""
LEAST = 0.05
"""Of the variance of an answer's worth."""
MARGIN, TINY = 0.02, 1e-9

BUCKETS, RUN = 1 << 12, 4
"""Into which runs of that many bytes are hashed."""


def grams_of(query: Query) -> NDArray[np.float32]:
    """1 + ln of the count of each run of bytes within the words of the query's text: float32 [BUCKETS]."""
    text = " ".join(excerpt(text_of(query)).lower().split())
    codes = np.frombuffer(f" {text} ".encode().ljust(RUN), np.uint8)
    runs = np.lib.stride_tricks.sliding_window_view(codes, RUN)
    runs = runs[(runs[:, 1:-1] != ord(" ")).all(axis=1)]
    numbers = runs.astype(np.uint32) @ (1 << np.arange(0, 8 * RUN, 8, dtype=np.uint32))
    # Multiplicative hashing (Knuth): the upper bits of the product are spread evenly.
    buckets = (numbers * np.uint32(2654435761)) >> np.uint32(33 - BUCKETS.bit_length())
    counts = np.bincount(buckets, minlength=BUCKETS)
    return np.where(counts, 1.0 + np.log(np.maximum(counts, 1)), 0.0).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Experience:
    """``side``: index in ``SIDES``; ``score``: the trained router's; ``worth``: of the answer, 0 to 1; ``state``: of a
    probe (``ProbeClassifier.directions``), float64 [columns].
    """

    grams: NDArray[np.float32]
    group: str
    side: int
    score: float
    worth: float
    state: Floats | None = None

    @property
    def residual(self) -> float:
        return self.worth - float(_promised(np.array([self.side]), np.array([self.score]))[0])


@dataclass(frozen=True, eq=False)
class Solution:
    """Immutable, for any thread. ``shares``: of each observation in how much more the cloud's answer is worth than the
    edge's, float64 [observations]; ``by_text``: their sum over the texts, weighted by ``idf``, float32 [BUCKETS] both.
    """

    groups: NDArray[np.str_] = field(default_factory=lambda: np.zeros(0, np.str_))
    shares: Floats = field(default_factory=lambda: np.zeros(0))
    idf: NDArray[np.float32] = field(default_factory=lambda: np.zeros(BUCKETS, np.float32))
    by_text: NDArray[np.float32] = field(default_factory=lambda: np.zeros(BUCKETS, np.float32))
    states: Floats = field(default_factory=lambda: np.zeros((0, 0)))

    def correction(self, grams: NDArray[np.float32], group: str, state: Floats | None = None) -> float:
        found = COMMON * self.shares.sum() + TEXT * (self.by_text @ _unit(grams * self.idf))
        found += GROUP * self.shares[(self.groups == group) & (group != "")].sum()
        if state is not None:
            found += STATE * (self.shares @ _alike(self.states, state[None])[:, 0])
        return float(found)

    def score(self, score: float, grams: NDArray[np.float32], group: str, state: Floats | None = None) -> float:
        return squash(unsquash(score) + self.correction(grams, group, state))


class OnlineLearner:
    """Deterministic. Not thread-safe."""

    def __init__(self, memory: Sequence[Experience] = ()) -> None:
        self.memory = deque(memory, maxlen=CAPACITY)
        self._new = 0
        self.solution = Solution()
        self.solve()

    def observe(self, observation: Experience) -> None:
        self.memory.append(observation)
        self._new += 1
        if self._new >= max(EVERY, len(self.memory) // PART):
            self.solve()

    def solve(self) -> None:
        self._new = 0
        if not self.memory:
            return
        known = self.arrays()
        sides, groups = known["sides"], known["groups"]
        idf = np.log((1 + len(sides)) / (1 + np.count_nonzero(known["grams"], axis=0)), dtype=np.float32) + 1
        texts = _unit(known["grams"] * idf)
        same = ((groups[:, None] == groups) & (groups != "")).astype(np.float64)
        text, state = (texts @ texts.T).astype(np.float64), _alike(known["states"], known["states"])
        ours = sides[:, None] == sides
        covariance = np.where(ours, 1.0, SHARED) * (COMMON + GROUP * same + TEXT * text + STATE * state)
        ages = np.triu(ours * np.maximum(same, np.maximum(text, state)), 1).sum(axis=1)
        cloud = known["worths"][sides == SIDES.index("cloud")]
        level = (PRIOR * CLOUD + cloud.sum()) / (PRIOR + len(cloud))
        promised = _promised(sides, known["scores"], level)
        noise = np.maximum(promised * (1.0 - promised), LEAST) * np.exp(np.minimum(ages / AGE, OLDEST))
        weights = np.linalg.solve(covariance + np.diag(noise), known["worths"] - promised)
        shares = (1.0 - SHARED) * np.where(sides == SIDES.index("cloud"), 1.0, -1.0) * weights
        self.solution = Solution(groups, shares, idf, shares.astype(np.float32) @ texts, known["states"])

    def arrays(self) -> dict[str, NDArray[Any]]:
        """For ``of_arrays``. States are zeros where there is none."""
        columns = max((len(past.state) for past in self.memory if past.state is not None), default=0)
        states = [np.zeros(columns) if past.state is None else past.state for past in self.memory]
        return {
            "grams": np.array([past.grams for past in self.memory]).reshape(-1, BUCKETS),
            "groups": np.array([past.group for past in self.memory], dtype=np.str_),
            "sides": np.array([past.side for past in self.memory], dtype=np.intp),
            "scores": np.array([past.score for past in self.memory], dtype=np.float64),
            "worths": np.array([past.worth for past in self.memory], dtype=np.float64),
            "states": np.array(states, dtype=np.float64).reshape(len(states), columns),
        }

    @classmethod
    def of_arrays(cls, found: Mapping[str, NDArray[Any]]) -> OnlineLearner:
        """Raises ValueError for arrays that are not those of a learner."""
        if missing := {"grams", "groups", "sides", "scores", "worths", "states"} - found.keys():
            raise ValueError(
                f"it has no {', '.join(sorted(missing))}; a folder of an earlier version must be made anew"
            )
        states = [state if state.any() else None for state in found["states"]]
        columns = (found[name].tolist() for name in ("groups", "sides", "scores", "worths"))
        return cls([Experience(*one) for one in zip(found["grams"], *columns, states, strict=True)])


def _promised(sides: NDArray[np.intp], scores: Floats, cloud: float = CLOUD) -> Floats:
    """The expected worth of answers, float64 [observations]: the edge's by the score, the cloud's a constant."""
    return np.clip(np.where(sides == SIDES.index("edge"), 1.0 - scores, cloud), MARGIN, 1.0 - MARGIN)


def _alike(states: Floats, others: Floats) -> Floats:
    """The kernel of states, 0 to 1: float64 [states, others]. One of zeros is like no other."""
    there = np.any(states, axis=1, keepdims=True) & np.any(others, axis=1)
    if not there.any():
        return np.zeros(there.shape)
    return np.where(there, np.exp(NARROW * (states @ others.T - 1.0)), 0.0)


def _unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), np.float32(TINY))


def squash(x: float) -> float:
    """A number around 0 to 1 as one between them, in the same order; the identity between the margins."""
    if x < MARGIN:
        return MARGIN * math.exp((x - MARGIN) / MARGIN)
    if x > 1.0 - MARGIN:
        return 1.0 - squash(1.0 - x)
    return x


def unsquash(y: float) -> float:
    if y < MARGIN:
        return MARGIN + MARGIN * math.log(max(y, TINY) / MARGIN)
    if y > 1.0 - MARGIN:
        return 1.0 - unsquash(1.0 - y)
    return y


KIND = "lifelong"
LEARNED = "online.npz"


class AdaptedClassifier(Classifier):
    def __init__(self, base: TrainedRouter, learner: OnlineLearner) -> None:
        self.base, self.learner = base, learner

    @classmethod
    def fit(cls, queries: Sequence[Query], targets: Floats, *, seed: int = 0, **options: Any) -> AdaptedClassifier:
        raise UserError("a lifelong router learns from feedback: train another kind, and name it in LifelongRouter")

    @property
    def probe(self) -> ProbeClassifier | None:
        return self.base.probe

    def score(self, queries: Sequence[Query]) -> Floats:
        if self.probe is not None:
            return self.score_states(queries, self.probe.states_of(queries))
        scores = self.base.score(queries).tolist()
        return np.array([self._score(query, score, None) for query, score in zip(queries, scores, strict=True)])

    def score_states(self, queries: Sequence[Query], states: Halves) -> Floats:
        assert self.probe is not None
        scores, seen = self.base.score_states(queries, states).tolist(), self.probe.directions(states)
        read = zip(queries, scores, seen, strict=True)
        return np.array([self._score(query, score, state) for query, score, state in read])

    def _score(self, query: Query, score: float, state: Floats | None) -> float:
        return self.learner.solution.score(score, grams_of(query), query.group, state)

    def save(self, folder: Path) -> None:
        self.base.save(folder / LIFELONG_BASE)
        # What is loaded takes all observations into account.
        self.learner.solve()
        np.savez_compressed(folder / LEARNED, allow_pickle=False, **self.learner.arrays())

    @classmethod
    def load(cls, folder: Path) -> AdaptedClassifier:
        return cls(TrainedRouter.load(folder / LIFELONG_BASE), OnlineLearner.of_arrays(read_arrays(folder / LEARNED)))
