"""Queries of several subjects, some of which the edge fails at, and classifiers trained on them."""

from __future__ import annotations

import numpy as np

from ianvs_specdec.common.types import Query
from ianvs_specdec.routing.learned.classifier import classifier
from ianvs_specdec.routing.outcomes.recorded import Outcomes

KINDS = ("logistic", "knn")
SUBJECTS = {
    "law": ["court", "contract", "tort", "statute", "judge", "appeal"],
    "art": ["painter", "canvas", "fresco", "colour", "museum", "statue"],
    "maths": ["sum", "product", "root", "prime", "limit", "integral"],
    "food": ["bread", "salt", "vitamin", "butter", "oven", "recipe"],
    "stars": ["planet", "orbit", "comet", "nebula", "moon", "eclipse"],
    "money": ["price", "market", "tax", "wage", "rent", "budget"],
}


def apgr(scores, gain):
    """Mean share of the gain over all shares of queries in the cloud, for distinct scores."""
    had = np.concatenate([[0.0], np.cumsum(gain[np.argsort(-scores)])]) / gain.sum()
    return float(np.mean((had[1:] + had[:-1]) / 2))


def asked(count, seed, subjects=tuple(SUBJECTS), hard=("law", "maths")):
    """The edge fails at some subjects, and at calculations in all of them."""
    generator = np.random.default_rng(seed)
    queries, right = [], []
    for index in range(count):
        subject, numbers = str(generator.choice(subjects)), generator.random() < 0.4
        words = " ".join(generator.choice(SUBJECTS[subject], 4))
        options = [str(generator.integers(100)) if numbers else words.split()[i] for i in range(4)]
        stem = f"Calculate {generator.integers(99)} + {generator.integers(99)} for the {words}." if numbers else words
        text = "\n".join([stem, *(f"{letter}. {option}" for letter, option in zip("ABCD", options, strict=True))])
        queries.append(Query((f"{text}\nAnswer:",), id=str(index), group=subject))
        chance = 0.1 if numbers else 0.45 if subject in hard else 0.95
        right.append(generator.random() < chance)
    return Outcomes(tuple(queries), np.array(right, dtype=float), (generator.random(count) < 0.95).astype(float))


def fitted(kind, outcomes, **options):
    return classifier(kind).fit(outcomes.queries, (1 + outcomes.gain) / 2, **options)
