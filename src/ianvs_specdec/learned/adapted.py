"""Kind ``lifelong``: a trained router, and what was learned from feedback since, as one folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ianvs_specdec.errors import UserError
from ianvs_specdec.learned.arrays import read_arrays
from ianvs_specdec.learned.classifier import Classifier
from ianvs_specdec.learned.folder import TrainedRouter
from ianvs_specdec.learned.grams import grams_of
from ianvs_specdec.learned.online import OnlineLearner
from ianvs_specdec.outcomes.recorded import Floats
from ianvs_specdec.types import Query

KIND = "lifelong"
BASE, LEARNED = "base", "online.npz"


class AdaptedClassifier(Classifier):
    """``base`` scores, ``learner`` corrects."""

    def __init__(self, base: TrainedRouter, learner: OnlineLearner) -> None:
        self.base, self.learner = base, learner

    @classmethod
    def fit(cls, queries: Sequence[Query], targets: Floats, *, seed: int = 0, **options: Any) -> AdaptedClassifier:
        raise UserError("a lifelong router learns from feedback: train another kind, and name it in LifelongRouter")

    def score(self, queries: Sequence[Query]) -> Floats:
        scores = zip(self.base.score(queries), queries, strict=True)
        learned = self.learner.solution
        return np.array([learned.score(float(score), grams_of(query), query.group) for score, query in scores])

    def save(self, folder: Path) -> None:
        self.base.save(folder / BASE)
        np.savez_compressed(folder / LEARNED, allow_pickle=False, **self.learner.arrays())

    @classmethod
    def load(cls, folder: Path) -> AdaptedClassifier:
        return cls(TrainedRouter.load(folder / BASE), OnlineLearner.of_arrays(read_arrays(folder / LEARNED)))
