"""Words and pairs of words as TF-IDF weights: learnt from the training queries, kept as a list of terms."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ianvs_specdec.routing.outcomes.recorded import Floats

LEAST = 2
"""A term is known from so many training queries on."""
MOST = 250_000
"""No more terms than this are kept, the most frequent ones."""

Weights = tuple[NDArray[np.intp], Floats]
"""Numbers of the terms of one query, and their weights, of which the sum of squares is 1 (or 0)."""


def terms_of(tokens: Sequence[str]) -> Counter[str]:
    """The tokens, and the pairs of neighbours with a space between them, with how often each is there."""
    found = Counter(tokens)
    found.update(map(" ".join, itertools.pairwise(tokens)))
    return found


class NGrams:
    """``terms`` in alphabetical order, and the inverse document frequency of each, float64 [terms]."""

    def __init__(self, terms: Sequence[str], rarity: Floats) -> None:
        self.terms, self.rarity = list(terms), rarity
        self._index = {term: index for index, term in enumerate(self.terms)}

    @classmethod
    def fit(cls, documents: Iterable[Sequence[str]]) -> NGrams:
        """The terms of these queries, each a list of tokens."""
        count, frequency = 0, Counter[str]()
        for tokens in documents:
            count += 1
            frequency.update(terms_of(tokens).keys())
        # Of equally frequent terms those that come first in the alphabet: the order of the queries does not matter.
        known = sorted((-many, term) for term, many in frequency.items() if many >= LEAST)[:MOST]
        terms = sorted(term for _, term in known)
        many = np.array([frequency[term] for term in terms], dtype=np.float64)
        return cls(terms, np.log((1 + count) / (1 + many)) + 1)

    def weights(self, tokens: Sequence[str]) -> Weights:
        """The weights of one query: (1 + ln of how often) times the inverse document frequency, of length 1."""
        known = self._index.get
        found = [(number, many) for term, many in terms_of(tokens).items() if (number := known(term)) is not None]
        numbers = np.array([number for number, _ in found], dtype=np.intp)
        values = (1.0 + np.log(np.array([many for _, many in found], dtype=np.float64))) * self.rarity[numbers]
        return numbers, values / max(float(np.sqrt(values @ values)), 1e-12)

    def matrix(self, rows: Sequence[Weights]) -> Any:
        """The weights of many queries as a sparse matrix of scipy, float64 [queries, terms]."""
        from scipy.sparse import csr_matrix

        ends = np.cumsum([0, *(len(numbers) for numbers, _ in rows)])
        numbers, values = (np.concatenate(column) for column in zip(*rows, strict=True))
        return csr_matrix((values, numbers, ends), shape=(len(rows), len(self.terms)))
