"""The kinds of trained routers: one class each, imported when it is chosen."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ianvs_specdec.common.errors import unknown
from ianvs_specdec.common.settings import Settings
from ianvs_specdec.common.types import Query
from ianvs_specdec.routing.outcomes.recorded import Floats

if TYPE_CHECKING:
    from ianvs_specdec.routing.outcomes.hidden_states import Halves

CLASSIFIERS = {
    "logistic": "ianvs_specdec.routing.learned.text:LogisticClassifier",
    "knn": "ianvs_specdec.routing.learned.text:NeighbourClassifier",
    "encoder": "ianvs_specdec.routing.learned.transformer:TransformerClassifier",
    "probe": "ianvs_specdec.routing.learned.probe:ProbeClassifier",
    "lifelong": "ianvs_specdec.routing.learned.online:AdaptedClassifier",
}
"""Name -> ``module:class``."""
TRAINABLE = ("encoder", "knn", "logistic", "probe")
"""Those that are trained from outcomes; the others are what a router at work has become."""


class Classifier(ABC):
    """Scores queries from 0 to 1. The scores are raw: ``folder.TrainedRouter`` calibrates them."""

    Options: ClassVar[type[Settings]] = Settings
    """Arguments of ``fit`` that a user may set."""
    FOLDS: ClassVar[int] = 5
    """By default, see ``training.RouterRecipe``."""

    @classmethod
    @abstractmethod
    def fit(cls, queries: Sequence[Query], targets: Floats, *, seed: int = 0, **options: Any) -> Classifier:
        """``targets``: labels, float64 [queries], 0 to 1. The result depends on the arguments alone."""

    @abstractmethod
    def score(self, queries: Sequence[Query]) -> Floats:
        """float64 [queries], from 0 to 1."""

    @property
    def probe(self) -> Any:
        """The ``ProbeClassifier`` that reads the edge's hidden states; then ``score_states`` scores. None: no need."""
        return None

    def score_states(self, queries: Sequence[Query], states: Halves) -> Floats:
        """float64 [queries], by the probe's ``states`` of them, float16 [queries, layers, 2 * hidden]."""
        raise NotImplementedError

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write own files (JSON, npz, safetensors) into a folder that exists."""

    @classmethod
    @abstractmethod
    def load(cls, folder: Path) -> Classifier:
        """Read what ``save`` wrote. Runs no code from the folder."""


def classifier(kind: str) -> type[Classifier]:
    if kind not in CLASSIFIERS:
        raise unknown("kind of router", kind, CLASSIFIERS)
    module, _, name = CLASSIFIERS[kind].partition(":")
    return getattr(importlib.import_module(module), name)
