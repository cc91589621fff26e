"""What the online learner sees of a query's text: which runs of four bytes are in it, hashed, and how often."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ianvs_specdec.common.types import Query
from ianvs_specdec.routing.outcomes.recorded import Floats, text_of

BITS = 17
LENGTH = 4
SPACE = 32
ENDS = 2048
"""Of a longer text this many characters of its beginning and of its end are read."""


@dataclass(frozen=True, eq=False)
class Grams:
    """``buckets``: int32 [n], ascending, without repetition; ``counts``: float64 [n], 1 + log of how often."""

    buckets: NDArray[np.int32]
    counts: Floats


def grams_of(query: Query) -> Grams:
    """Runs that cross a space are left out, so that a word's neighbours do not matter, but its beginning and end do."""
    text = text_of(query)
    if len(text) > 2 * ENDS:
        text = f"{text[:ENDS]} {text[-ENDS:]}"
    data = f" {' '.join(text.lower().split())} ".encode("utf-8", "surrogatepass").ljust(LENGTH)
    codes = np.frombuffer(data, np.uint8).astype(np.uint32)
    runs = (codes[:-3] << 24) | (codes[1:-2] << 16) | (codes[2:-1] << 8) | codes[3:]
    runs = runs[(codes[1:-2] != SPACE) & (codes[2:-1] != SPACE)]
    # Multiplicative hashing (Knuth): the upper bits of the product are spread evenly.
    buckets, times = np.unique((runs * np.uint32(2654435761)) >> np.uint32(32 - BITS), return_counts=True)
    return Grams(buckets.astype(np.int32), 1.0 + np.log(times))


class Weighting:
    """Inverse document frequencies, learned from the texts as they come."""

    def __init__(self) -> None:
        self.texts = 0
        self.frequency = np.zeros(1 << BITS)

    def count(self, grams: Grams) -> None:
        self.texts += 1
        self.frequency[grams.buckets] += 1

    def idf(self) -> Floats:
        """float64 [2**BITS]."""
        return np.log((1 + self.texts) / (1 + self.frequency)) + 1


def weigh(grams: Grams, idf: Floats) -> Floats:
    """The weights of the text's buckets, a vector of length 1 (of zeros without any bucket)."""
    weights = grams.counts * idf[grams.buckets]
    length = float(np.sqrt(weights @ weights))
    return weights / length if length > 0 else weights


class GramRows:
    """Weighted texts (buckets and their weights) that others are compared with."""

    def __init__(self, rows: Sequence[tuple[NDArray[np.int32], Floats]]) -> None:
        self.starts = np.concatenate([[0], np.cumsum([len(buckets) for buckets, _ in rows])]).astype(np.intp)
        self.buckets = np.concatenate([np.zeros(0, np.int32), *(buckets for buckets, _ in rows)])
        self.weights = np.concatenate([np.zeros(0), *(weights for _, weights in rows)])

    def similarities(self, buckets: NDArray[np.int32], weights: Floats) -> Floats:
        """Cosines with a text, float64 [rows]."""
        dense = np.zeros(1 << BITS)
        dense[buckets] = weights
        # A running sum, since reduceat does not know empty rows.
        total = np.concatenate([[0.0], np.cumsum(self.weights * dense[self.buckets])])
        return total[self.starts[1:]] - total[self.starts[:-1]]

    def combined(self, coefficients: Floats) -> Floats:
        """Sum of the texts' weights, each times its coefficient: float64 [2**BITS]."""
        each = np.repeat(coefficients, np.diff(self.starts))
        return np.bincount(self.buckets, self.weights * each, minlength=1 << BITS).astype(np.float64)
