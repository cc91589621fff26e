"""Kind ``lifelong``: a trained router, and what was learned from feedback since, as one folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Query
from ianvs_specdec.routing.learned.arrays import read_arrays
from ianvs_specdec.routing.learned.classifier import Classifier
from ianvs_specdec.routing.learned.folder import LIFELONG_BASE, TrainedRouter
from ianvs_specdec.routing.learned.online import OnlineLearner, grams_of
from ianvs_specdec.routing.learned.probe import ProbeClassifier
from ianvs_specdec.routing.outcomes.recorded import Floats
from ianvs_specdec.routing.outcomes.states import Halves

KIND = "lifelong"
LEARNED = "online.npz"


class AdaptedClassifier(Classifier):
    """``base`` scores, ``learner`` corrects."""

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
            return self.score_read(queries, self.probe.recorded(queries))
        scores = self.base.score(queries).tolist()
        return np.array([self._score(query, score, None) for query, score in zip(queries, scores, strict=True)])

    def score_read(self, queries: Sequence[Query], states: Halves) -> Floats:
        assert self.probe is not None
        scores, seen = self.base.score_read(queries, states).tolist(), self.probe.directions(states)
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
