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
from ianvs_specdec.routing.learned.folder import TrainedRouter, read_settings
from ianvs_specdec.routing.learned.online import OnlineLearner, grams_of
from ianvs_specdec.routing.learned.probe import KIND as PROBE
from ianvs_specdec.routing.learned.probe import ProbeClassifier
from ianvs_specdec.routing.outcomes.recorded import Floats
from ianvs_specdec.routing.outcomes.states import Halves

KIND = "lifelong"
BASE, LEARNED = "base", "online.npz"


class AdaptedClassifier(Classifier):
    """``base`` scores, ``learner`` corrects."""

    def __init__(self, base: TrainedRouter, learner: OnlineLearner) -> None:
        self.base, self.learner = base, learner

    @classmethod
    def fit(cls, queries: Sequence[Query], targets: Floats, *, seed: int = 0, **options: Any) -> AdaptedClassifier:
        raise UserError("a lifelong router learns from feedback: train another kind, and name it in LifelongRouter")

    @property
    def probe(self) -> ProbeClassifier | None:
        """What has to read a query first, where the base is a probe."""
        return self.base.classifier if isinstance(self.base.classifier, ProbeClassifier) else None

    def score(self, queries: Sequence[Query]) -> Floats:
        if self.probe is not None:
            return self.score_read(queries, self.probe.recorded(queries))
        return np.array([
            self._score(query, float(score), None)
            for query, score in zip(queries, self.base.score(queries), strict=True)
        ])  # fmt: skip

    def score_read(self, queries: Sequence[Query], states: Halves) -> Floats:
        """float64 [queries], with the probe's ``states`` of them, float16 [queries, layers, 2 * hidden]."""
        assert self.probe is not None
        scores, seen = self.base.calibration(self.probe.score_states(states)), self.probe.directions(states)
        read = zip(queries, scores.tolist(), seen, strict=True)
        return np.array([self._score(query, score, state) for query, score, state in read])

    def _score(self, query: Query, score: float, state: Floats | None) -> float:
        return self.learner.solution.score(score, grams_of(query), query.group, state)

    def save(self, folder: Path) -> None:
        self.base.save(folder / BASE)
        # What is loaded takes all observations into account.
        self.learner.solve()
        np.savez_compressed(folder / LEARNED, allow_pickle=False, **self.learner.arrays())

    @classmethod
    def load(cls, folder: Path) -> AdaptedClassifier:
        return cls(TrainedRouter.load(folder / BASE), OnlineLearner.of_arrays(read_arrays(folder / LEARNED)))


def probe_of(router: TrainedRouter) -> ProbeClassifier | None:
    """What of the router looks at the edge's hidden states, if any does."""
    classifier = router.classifier
    if isinstance(classifier, AdaptedClassifier):
        return classifier.probe
    return classifier if isinstance(classifier, ProbeClassifier) else None


def is_probe(folder: Path) -> bool:
    """Whether the router in a folder looks at the edge's hidden states. Raises UserError as ``read_settings`` does."""
    kind = read_settings(folder).kind
    return kind == PROBE or (kind == KIND and read_settings(folder / BASE).kind == PROBE)


def score_read(router: TrainedRouter, query: Query, states: Halves) -> float:
    """The score of a query whose ``states`` were read, float16 [1, layers, 2 * hidden] or these in one row, by a router
    that looks at them."""
    classifier = router.classifier
    if isinstance(classifier, AdaptedClassifier):
        return float(router.calibration(classifier.score_read([query], states))[0])
    assert isinstance(classifier, ProbeClassifier)
    return float(router.calibration(classifier.score_states(states))[0])
