"""Text classifiers that learn from the training queries alone, in seconds, and score a query in about a millisecond.

``logistic`` takes the mean of three predictions of the label, each of which sees something else:

- a ridge regression on the TF-IDF weights of words and pairs of words, and on the surface numbers: what is asked about;
- boosted trees on the surface numbers (lengths, signs, kinds of words, form of the options): what kind of question it
  is, which carries over to subjects that were never seen;
- the weighted mean of the nearest training queries' labels, by words and surface together, where queries have groups
  less what their groups have on the average: what makes a question harder than others of its subject.

The logistic function makes a score of the mean. ``knn`` is the last of the three alone, with the labels as they are,
as nothing else there knows of the groups. ``embedding`` names a model of sentence-transformers (a folder, or a name on
the hub) whose vectors take the place of latent semantics.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ianvs_specdec.common.errors import UserError, packages
from ianvs_specdec.common.types import Query
from ianvs_specdec.models.documents import read_object
from ianvs_specdec.records.identity import write_atomically
from ianvs_specdec.routing.learned.arrays import read_arrays
from ianvs_specdec.routing.learned.classifier import Classifier
from ianvs_specdec.routing.learned.features import Reader
from ianvs_specdec.routing.learned.linear import LinearScore
from ianvs_specdec.routing.learned.neighbours import Neighbours
from ianvs_specdec.routing.learned.sentences import Sentences
from ianvs_specdec.routing.learned.trees import Trees
from ianvs_specdec.routing.outcomes.recorded import Floats

SETTINGS, ARRAYS = "text.json", "text.npz"
FORMAT = 1

LOSS = 0.8
"""A label below 0.5 (the edge is better) counts as this much of its distance. Where a small model beats a large one it
is often by an accident of the record, which other subjects do not share. Of labels that are 0 or 1 the order stays.
"""
ACCIDENT = 20.0
"""Half of what sets a group of so many training queries apart is taken for an accident of which queries they are."""
STEEPNESS = 4.0
"""Of the logistic function: around 0.5 the score changes as fast as the mean."""


class TextClassifier(Classifier):
    """What the kinds here have in common: how queries are read, and the neighbours."""

    OPTIONS: ClassVar[dict[str, Any]] = {"embedding": None}

    def __init__(self, reader: Reader, neighbours: Neighbours) -> None:
        self._reader, self._neighbours = reader, neighbours

    def _arrays(self) -> dict[str, NDArray[Any]]:
        return {**self._reader.arrays(), **self._neighbours.arrays()}

    def save(self, folder: Path) -> None:
        arrays: dict[str, Any] = self._arrays()
        with (folder / ARRAYS).open("wb") as file:
            np.savez(file, **arrays)
        settings = {"format": FORMAT, **self._reader.settings()}
        write_atomically(folder / SETTINGS, json.dumps(settings) + "\n")


class NeighbourClassifier(TextClassifier):
    """The nearest training queries' labels. ``embedding``: see the module."""

    @classmethod
    def fit(
        cls,
        queries: Sequence[Query],
        targets: Floats,
        *,
        seed: int = 0,
        embedding: str | Sentences | None = None,
        **_: Any,
    ) -> NeighbourClassifier:
        with packages():
            reader, features = Reader.fit(queries, embedding, seed)
        return cls(reader, Neighbours.fit(features.joint, _cautious(targets), seed))

    def score(self, queries: Sequence[Query]) -> Floats:
        return self._neighbours(self._reader(queries).joint)

    @classmethod
    def load(cls, folder: Path) -> NeighbourClassifier:
        reader, arrays = _read(folder)
        return cls(reader, Neighbours.of(arrays))


class LogisticClassifier(TextClassifier):
    """The mean of three predictions, see the module, which says what ``embedding`` is, too."""

    def __init__(self, reader: Reader, neighbours: Neighbours, linear: LinearScore, trees: Trees) -> None:
        super().__init__(reader, neighbours)
        self._linear, self._trees = linear, trees

    @classmethod
    def fit(
        cls,
        queries: Sequence[Query],
        targets: Floats,
        *,
        seed: int = 0,
        embedding: str | Sentences | None = None,
        **_: Any,
    ) -> LogisticClassifier:
        with packages():
            reader, features = Reader.fit(queries, embedding, seed)
            labels = _cautious(targets)
            linear = LinearScore.fit(reader.ngrams, features, labels)
            trees = Trees.fit(features.surface, labels, seed)
            neighbours = Neighbours.fit(features.joint, _within(queries, labels), seed)
        return cls(reader, neighbours, linear, trees)

    def score(self, queries: Sequence[Query]) -> Floats:
        features = self._reader(queries)
        mean = (self._linear(features) + self._trees(features.surface) + self._neighbours(features.joint)) / 3
        return np.asarray(1.0 / (1.0 + np.exp(-STEEPNESS * (mean - 0.5))), dtype=np.float64)

    def _arrays(self) -> dict[str, NDArray[Any]]:
        return {**super()._arrays(), **self._linear.arrays(), **self._trees.arrays()}

    @classmethod
    def load(cls, folder: Path) -> LogisticClassifier:
        reader, arrays = _read(folder)
        return cls(reader, Neighbours.of(arrays), LinearScore.of(arrays, len(reader.ngrams.terms)), Trees.of(arrays))


def _cautious(targets: Floats) -> Floats:
    return np.where(targets < 0.5, 0.5 - LOSS * (0.5 - targets), targets)


def _within(queries: Sequence[Query], labels: Floats) -> Floats:
    """The labels, less by how much their mean over the query's group, as far as it can be told, differs from all's."""
    numbers: dict[str, int] = {}
    members = np.array([numbers.setdefault(query.group, len(numbers)) for query in queries])
    apart: Floats = np.bincount(members, labels - labels.mean()) / (np.bincount(members) + ACCIDENT)
    return labels - apart[members]


def _read(folder: Path) -> tuple[Reader, Mapping[str, NDArray[Any]]]:
    """The reader and all arrays. Raises ValueError, KeyError or OSError if they are not what ``save`` writes."""
    try:
        settings = read_object(folder / SETTINGS)
    except UserError as error:
        raise ValueError(str(error)) from error
    if settings.get("format") != FORMAT:
        raise ValueError(f"{SETTINGS} is not of a format this version reads ({FORMAT})")
    arrays = read_arrays(folder / ARRAYS)
    return Reader.of(settings, arrays), arrays
