"""Queries as vectors whose products say how alike they are, and what is known of a query's nearest neighbours.

A vector joins what the query is about (latent semantic analysis of the training queries' words, Deerwester et al. 1990,
or a model of sentence-transformers) with what kind of question it is (the surface numbers of ``reading``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ianvs_specdec.routing.learned.words import Weights
from ianvs_specdec.routing.outcomes.recorded import Floats

Vectors = NDArray[np.float32]

TOPICS, KEPT = 150, 128
"""Dimensions of the latent semantics, and of the joint vectors."""
FREQUENT = 5
"""Words of so many training queries have a place in the latent semantics."""
NEAREST = 4
"""This, times the square root of the number of training queries, is how many neighbours count."""
POWER = 3
"""A neighbour counts as its cosine to this power, less most of the farthest neighbour's."""
FADE = 0.9
"""So much of it, not all: queries that are all alike must still count."""
DOUBT = 0.02
"""The mean of all training queries' labels has this share of the neighbours' weight."""
MOST = 8192
"""No more training queries than these, drawn at random, are kept to be compared with."""
BLOCK = 512
"""Queries that are compared with all training queries together."""


class Topics:
    """Latent semantics: words (numbers of terms, ascending) and the place of each, float32 [words, dimensions]."""

    def __init__(self, words: NDArray[np.intp], places: Vectors) -> None:
        self.words, self.places = words, places

    @classmethod
    def fit(cls, matrix: Any, terms: Sequence[str], seed: int) -> Topics:
        """``matrix``: the training queries' TF-IDF weights, sparse [queries, terms]."""
        from sklearn.decomposition import TruncatedSVD

        frequency = np.bincount(matrix.indices, minlength=len(terms))
        words = np.flatnonzero(frequency >= FREQUENT)
        words = np.array([word for word in words.tolist() if terms[word].isalnum()], dtype=np.intp)
        dimensions = min(TOPICS, len(words), matrix.shape[0])
        if dimensions < 1:
            return cls(words[:0], np.zeros((0, 1), np.float32))
        svd = TruncatedSVD(dimensions, n_iter=2, random_state=seed).fit(matrix[:, words])
        return cls(words, _stored(svd.components_.T))

    def __call__(self, rows: Sequence[Weights]) -> Vectors:
        """Vectors of length 1 (or 0), float32 [queries, dimensions]."""
        found = np.zeros((len(rows), self.places.shape[1]), np.float32)
        for vector, (numbers, values) in zip(found, rows, strict=True):
            where = np.searchsorted(self.words, numbers)
            here = where < len(self.words)
            here[here] = self.words[where[here]] == numbers[here]
            vector[:] = values[here].astype(np.float32) @ self.places[where[here]]
        return unit(found)

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {"words": self.words, "places": self.places.astype(np.float16)}

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]], terms: int) -> Topics:
        """From what ``arrays`` gave; there are so many ``terms``. Raises ValueError if the arrays do not fit."""
        words, places = arrays["words"], arrays["places"]
        if (
            places.ndim != 2
            or words.shape != (len(places),)
            or (len(words) and not 0 <= words.min() <= words.max() < terms)
        ):
            raise ValueError("the arrays of the topics do not fit")
        return cls(words.astype(np.intp), places.astype(np.float32))


class Neighbours:
    """The training queries' vectors, float32 [queries, dimensions], and labels, float64 [queries]."""

    def __init__(self, axes: Vectors, vectors: Vectors, labels: Floats) -> None:
        self.axes, self.vectors, self.labels = axes, vectors, labels
        self.count = min(len(labels), round(NEAREST * len(labels) ** 0.5))
        self._mean = float(labels.mean())

    @classmethod
    def fit(cls, joint: Vectors, labels: Floats, seed: int) -> Neighbours:
        """``joint``: float32 [queries, features]; the directions in which they differ most are kept."""
        chosen = np.sort(np.random.default_rng(seed).permutation(len(labels))[:MOST])
        joint, labels = joint[chosen], labels[chosen]
        _, axes = np.linalg.eigh(joint.T.astype(np.float64) @ joint)
        kept = _stored(axes[:, ::-1][:, :KEPT])
        return cls(kept, _stored(unit(joint @ kept)), labels)

    def __call__(self, joint: Vectors) -> Floats:
        """The weighted mean of the nearest training queries' labels, float64 [queries]."""
        blocks = [self._block(joint[start : start + BLOCK]) for start in range(0, len(joint), BLOCK)]
        return np.concatenate(blocks) if blocks else np.zeros(0)

    def _block(self, joint: Vectors) -> Floats:
        cosines = unit(joint @ self.axes) @ self.vectors.T
        nearest = np.argpartition(cosines, -self.count, axis=1)[:, -self.count :]
        near = np.take_along_axis(cosines, nearest, axis=1).astype(np.float64)
        powers = np.maximum(near, 0.0) ** POWER
        # The farthest one counts little, so that next to nothing changes where two queries are equally far.
        weights = powers - FADE * powers.min(axis=1, keepdims=True)
        gain = np.einsum("ij,ij->i", weights, self.labels[nearest] - self._mean)
        total = (1.0 + DOUBT) * weights.sum(axis=1)
        return self._mean + np.divide(gain, total, out=np.zeros(len(gain)), where=total > 0)

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {
            "axes": self.axes.astype(np.float16),
            "neighbours": self.vectors.astype(np.float16),
            "labels": self.labels,
        }

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]]) -> Neighbours:
        """From what ``arrays`` gave. Raises ValueError if the arrays do not fit."""
        axes, vectors, labels = (arrays[name] for name in ("axes", "neighbours", "labels"))
        if axes.ndim != 2 or vectors.shape != (len(labels), axes.shape[1]) or not len(labels):
            raise ValueError("the arrays of the neighbours do not fit")
        return cls(axes.astype(np.float32), vectors.astype(np.float32), labels)


def unit(vectors: NDArray[Any]) -> Vectors:
    """Each row at length 1; a row of zeros stays one."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.divide(vectors, np.maximum(lengths, 1e-9), dtype=np.float32)


def _stored(values: NDArray[Any]) -> Vectors:
    """As they are after they have been stored in half precision: a router scores alike before and after."""
    return values.astype(np.float16).astype(np.float32)
