"""From queries to the features that the classifiers on text learn from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ianvs_specdec.common.types import Query
from ianvs_specdec.routing.learned.neighbours import Topics, Vectors, unit
from ianvs_specdec.routing.learned.reading import FEATURES, read
from ianvs_specdec.routing.learned.sentences import Sentences
from ianvs_specdec.routing.learned.words import NGrams, Weights
from ianvs_specdec.routing.outcomes.recorded import text_of

FARTHEST = 4.0
"""Surface numbers are cut off at so many standard deviations."""


class Features(NamedTuple):
    """Of queries: TF-IDF weights; surface numbers, standardised, float32 [queries, FEATURES]; vectors that say what the
    queries are about, of length 1, float32 [queries, dimensions].
    """

    weights: list[Weights]
    surface: NDArray[np.float32]
    about: Vectors

    @property
    def joint(self) -> Vectors:
        """What the queries are about and their surface, in equal shares, float32."""
        return unit(np.concatenate([self.about, self.surface / np.float32(len(FEATURES) ** 0.5)], axis=1))


class Reader:
    """Terms, means and standard deviations (float32 [FEATURES]) of the surface numbers, and what makes vectors."""

    def __init__(
        self, ngrams: NGrams, mean: NDArray[np.float32], deviation: NDArray[np.float32], about: Topics | Sentences
    ) -> None:
        self.ngrams, self.mean, self.deviation, self.about = ngrams, mean, deviation, about

    @classmethod
    def fit(cls, queries: Sequence[Query], embedding: str | Sentences | None, seed: int) -> tuple[Reader, Features]:
        """Learn from the training queries. Their features come with it."""
        sentences = Sentences(embedding) if embedding and not isinstance(embedding, Sentences) else embedding
        texts = [text_of(query) for query in queries]
        readings = [read(text) for text in texts]
        ngrams = NGrams.fit(reading.tokens for reading in readings)
        surface = np.array([reading.surface for reading in readings], np.float32)
        deviation = np.maximum(surface.std(axis=0), np.float32(1e-6))
        weights = [ngrams.weights(reading.tokens) for reading in readings]
        about = sentences or Topics.fit(ngrams.matrix(weights), ngrams.terms, seed)
        reader = cls(ngrams, surface.mean(axis=0), deviation, about)
        return reader, reader._features(texts, weights, surface)

    def __call__(self, queries: Sequence[Query]) -> Features:
        texts = [text_of(query) for query in queries]
        readings = [read(text) for text in texts]
        weights = [self.ngrams.weights(reading.tokens) for reading in readings]
        surface = np.array([reading.surface for reading in readings], np.float32).reshape(len(texts), len(FEATURES))
        return self._features(texts, weights, surface)

    def _features(self, texts: Sequence[str], weights: list[Weights], surface: NDArray[np.float32]) -> Features:
        surface = np.clip((surface - self.mean) / self.deviation, -FARTHEST, FARTHEST)
        about = self.about(texts) if isinstance(self.about, Sentences) else self.about(weights)
        return Features(weights, surface, about)

    def settings(self) -> dict[str, Any]:
        return {
            "surface": list(FEATURES),
            "embedding": self.about.name if isinstance(self.about, Sentences) else None,
            "terms": self.ngrams.terms,
        }

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {
            "rarity": self.ngrams.rarity,
            "mean": self.mean,
            "deviation": self.deviation,
            **({} if isinstance(self.about, Sentences) else self.about.arrays()),
        }

    @classmethod
    def of(cls, settings: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Reader:
        """From what ``settings`` and ``arrays`` gave. Raises ValueError if they do not fit."""
        if settings["surface"] != list(FEATURES):
            raise ValueError("the surface numbers are those of another version")
        terms, (rarity, mean, deviation) = settings["terms"], (arrays[key] for key in ("rarity", "mean", "deviation"))
        if rarity.shape != (len(terms),) or mean.shape != (len(FEATURES),) or deviation.shape != mean.shape:
            raise ValueError("the arrays do not fit the terms")
        name = settings["embedding"]
        about = Sentences(name) if name else Topics.of(arrays, len(terms))
        return cls(NGrams(terms, rarity), mean, deviation, about)
