"""Classifiers of trained routers: the interface, and the kinds, which are imported on use."""

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
"""Kinds that ``route train`` trains. ``lifelong`` is saved by a running LifelongRouter."""


class Classifier(ABC):
    """Scores queries from 0 to 1. ``folder.TrainedRouter`` calibrates the scores."""

    Options: ClassVar[type[Settings]] = Settings
    """Options of ``fit`` that users may set."""
    FOLDS: ClassVar[int] = 5
    """Default of ``training.RouterRecipe.folds``."""

    @classmethod
    @abstractmethod
    def fit(cls, queries: Sequence[Query], targets: Floats, *, seed: int = 0, **options: Any) -> Classifier:
        """Train on labels (``targets``: float64 [queries], 0 to 1). Deterministic."""

    @abstractmethod
    def score(self, queries: Sequence[Query]) -> Floats:
        """float64 [queries], from 0 to 1."""

    @property
    def probe(self) -> Any:
        """The ``ProbeClassifier`` if the classifier needs the edge's hidden states: use ``score_states``. Else None."""
        return None

    def score_states(self, queries: Sequence[Query], states: Halves) -> Floats:
        """float64 [queries], from their hidden ``states``, float16 [queries, layers, 2 * hidden]."""
        raise NotImplementedError

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write files (JSON, npz, safetensors) into an existing folder."""

    @classmethod
    @abstractmethod
    def load(cls, folder: Path) -> Classifier:
        """Read the files of ``save``. Runs no code from the folder."""


def classifier(kind: str) -> type[Classifier]:
    if kind not in CLASSIFIERS:
        raise unknown("kind of router", kind, CLASSIFIERS)
    module, _, name = CLASSIFIERS[kind].partition(":")
    return getattr(importlib.import_module(module), name)
