"""Text classifiers that train in seconds and score a query in a few milliseconds.

``knn`` is the weighted mean of the nearest training queries' labels, by the cosine similarity of TF-IDF vectors of
words and bigrams (or of ``embedding``, a sentence-transformers model) and of the ``text_features``.

``logistic`` is the logistic function of the mean of three predictions: that of ``knn``, a ridge regression on the
words (the subject), and boosted trees on the surface features (the form, which generalizes to other subjects).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from scipy.sparse import csr_array
from sklearn.ensemble import GradientBoostingRegressor
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.linear_model import Ridge
from sklearn.preprocessing import normalize

from ianvs_specdec.common.errors import UserError, optional_import
from ianvs_specdec.common.settings import Settings, Text
from ianvs_specdec.common.storage.atomic import write_atomically
from ianvs_specdec.common.types import Query
from ianvs_specdec.models.json_files import read_object
from ianvs_specdec.routing.learned.classifier import Classifier
from ianvs_specdec.routing.learned.folder import read_arrays
from ianvs_specdec.routing.learned.logistic import sigmoid
from ianvs_specdec.routing.learned.text_features import FEATURES, LONGEST, excerpt, surface_features
from ianvs_specdec.routing.outcomes.recorded import Floats, text_of

SETTINGS, ARRAYS = "text.json", "text.npz"
FORMAT = 2

BUCKETS = 1 << 16
"""Number of hash buckets of words and bigrams."""
FARTHEST = 4.0
"""Surface features are clipped at this many standard deviations."""

KEPT = 8192
"""Maximum number of stored training queries, a random sample."""
NEAREST = 4
"""Number of neighbours per square root of the number of training queries."""
WORDS = 0.7
"""Weight of the words in the similarity of two queries. The rest is that of the surface features."""
POWER, FADE = 3, 0.9
"""The weight of a neighbour: similarity to this power, minus ``FADE`` times that of the farthest neighbour."""
DOUBT = 0.02
"""Weight of the mean of all labels relative to the neighbours."""
BLOCK, BATCH = 512, 32
"""Batch sizes of queries to compare and of texts to encode."""

STRENGTH, STEEPNESS = 2.0, 4.0
"""Regularization of the ridge regression, and slope of the logistic function."""

TREES, DEPTH, RATE = 160, 3, 0.05
NODES = 2 ** (DEPTH + 1) - 1

_COUNTS = HashingVectorizer(
    token_pattern=r"\w+|[^\w\s]", ngram_range=(1, 2), n_features=BUCKETS, alternate_sign=False, norm=None
)


class TextOptions(Settings):
    noun = "option of the router"

    embedding: Text | None = Field(None, description="a model of sentence-transformers, by folder or name")


class Sentences:
    """A sentence-transformers model (folder or hub). ``known``: a cache of vectors. Raises UserError."""

    def __init__(self, name: str, known: dict[str, NDArray[np.float32]] | None = None) -> None:
        self.name, self._model, self.known = name, _loaded(name), known

    def __call__(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Unit vectors, float32 [texts, dimensions]."""
        bounded = [text[:LONGEST] for text in texts]
        known = {} if self.known is None else self.known
        if new := [text for text in dict.fromkeys(bounded) if text not in known]:
            how = {"normalize_embeddings": True, "convert_to_numpy": True, "show_progress_bar": False}
            known |= zip(new, self._model.encode(new, batch_size=BATCH, **how), strict=True)
        return np.array([known[text] for text in bounded], dtype=np.float32)


@lru_cache(maxsize=1)
def _loaded(name: str) -> Any:
    with optional_import():
        from sentence_transformers import SentenceTransformer
    try:
        return SentenceTransformer(name, device="cpu", trust_remote_code=False)
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise UserError(f"the embedding {name!r} cannot be loaded: {reason:.300}", key="embedding") from error


class NeighbourClassifier(Classifier):
    """``arrays``: float32, by name. ``idf`` [BUCKETS]; ``mean`` and ``deviation`` of the surface features [FEATURES];
    of the stored training queries ``forms`` [kept, FEATURES], ``labels`` [kept] and unit vectors [kept, dimensions],
    sparse as ``data``, ``indices``, ``indptr``, or with an embedding ``vectors``. Raises ValueError if inconsistent.
    """

    Options: ClassVar[type[Settings]] = TextOptions

    def __init__(self, arrays: Mapping[str, NDArray[Any]], embedding: Sentences | None) -> None:
        self.arrays, self._embedding = arrays, embedding
        forms, labels = arrays["forms"], arrays["labels"]
        if arrays["idf"].shape != (BUCKETS,) or forms.shape != (len(labels), len(FEATURES)) or not len(labels):
            raise ValueError("the arrays do not fit each other")
        if not arrays["mean"].shape == arrays["deviation"].shape == (len(FEATURES),):
            raise ValueError("the arrays of the surface numbers do not fit")
        if embedding is None:
            about = csr_array((arrays["data"], arrays["indices"], arrays["indptr"]), shape=(len(labels), BUCKETS))
            about.check_format(full_check=True)
            # By bucket, of which a query has few.
            self._about = about.T.tocsr()
        else:
            self._about = arrays["vectors"].T
        if self._about.ndim != 2 or len(labels) != self._about.shape[1]:
            raise ValueError("the vectors of the training queries do not fit")

    @classmethod
    def fit(
        cls,
        queries: Sequence[Query],
        targets: Floats,
        *,
        seed: int = 0,
        embedding: str | Sentences | None = None,
        **_: Any,
    ) -> Self:
        sentences = Sentences(embedding) if isinstance(embedding, str) else embedding
        texts = [excerpt(text_of(query)) for query in queries]
        counts, forms = _COUNTS.transform(texts), np.array([surface_features(text) for text in texts], np.float32)
        frequency = np.bincount(counts.indices, minlength=BUCKETS)
        # A term of a single query is useless for others.
        idf = np.where(frequency > 1, np.log((1 + len(texts)) / (1 + frequency)) + 1, 0.0)
        arrays = {
            "idf": idf.astype(np.float32),
            "mean": forms.mean(axis=0),
            "deviation": np.maximum(forms.std(axis=0), np.float32(1e-6)),
        }
        words, forms = _weighted(counts, arrays["idf"]), _standardized(forms, arrays)
        kept = np.sort(np.random.default_rng(seed).permutation(len(texts))[:KEPT])
        if sentences is None:
            about = words[kept]
            arrays |= {"data": about.data, "indices": about.indices, "indptr": about.indptr}
        else:
            arrays["vectors"] = sentences([texts[position] for position in kept])
        arrays |= {"forms": _unit(forms[kept]), "labels": targets[kept].astype(np.float32)}
        return cls({**arrays, **cls._others(words, forms, targets, seed)}, sentences)

    @classmethod
    def _others(cls, words: Any, forms: NDArray[np.float32], targets: Floats, seed: int) -> dict[str, Any]:
        """Arrays of additional predictions."""
        return {}

    def score(self, queries: Sequence[Query]) -> Floats:
        blocks = (queries[start : start + BLOCK] for start in range(0, len(queries), BLOCK))
        return np.concatenate([np.zeros(0), *map(self._score, blocks)])

    def _score(self, queries: Sequence[Query]) -> Floats:
        return self._neighbours(*self._read(queries))

    def _read(self, queries: Sequence[Query]) -> tuple[Any, NDArray[np.float32], Any]:
        """TF-IDF vectors, surface features, and the vectors for the neighbour search, each [queries, columns]."""
        texts = [excerpt(text_of(query)) for query in queries]
        words = _weighted(_COUNTS.transform(texts), self.arrays["idf"])
        forms = _standardized(np.array([surface_features(text) for text in texts], np.float32), self.arrays)
        return words, forms, words if self._embedding is None else self._embedding(texts)

    def _neighbours(self, words: Any, forms: NDArray[np.float32], about: Any) -> Floats:
        """The weighted mean of the nearest training queries' labels, float64 [queries]."""
        labels = self.arrays["labels"].astype(np.float64)
        alike = about @ self._about if self._embedding else (about @ self._about).toarray()
        near = WORDS * alike + (1.0 - WORDS) * (_unit(forms) @ self.arrays["forms"].T)
        count = min(len(labels), round(NEAREST * len(labels) ** 0.5))
        nearest = np.argpartition(near, -count, axis=1)[:, -count:]
        powers = np.maximum(np.take_along_axis(near, nearest, axis=1).astype(np.float64), 0.0) ** POWER
        # Not the whole weight of the farthest one, since identical queries must count.
        weights = powers - FADE * powers.min(axis=1, keepdims=True)
        gain = np.einsum("ij,ij->i", weights, labels[nearest] - labels.mean())
        total = (1.0 + DOUBT) * weights.sum(axis=1)
        return labels.mean() + np.divide(gain, total, out=np.zeros(len(gain)), where=total > 0)

    def save(self, folder: Path) -> None:
        with (folder / ARRAYS).open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **self.arrays)
        embedding = self._embedding.name if self._embedding else None
        settings = {"format": FORMAT, "surface": FEATURES, "embedding": embedding}
        write_atomically(folder / SETTINGS, json.dumps(settings) + "\n")

    @classmethod
    def load(cls, folder: Path) -> Self:
        try:
            settings = read_object(folder / SETTINGS)
        except UserError as error:
            raise ValueError(str(error)) from error
        if settings.get("format") != FORMAT or settings.get("surface") != list(FEATURES):
            raise ValueError(f"{SETTINGS} is not of this version (format {FORMAT}): train the router anew")
        embedding = settings["embedding"]
        return cls(read_arrays(folder / ARRAYS), None if embedding is None else Sentences(embedding))


class LogisticClassifier(NeighbourClassifier):
    def __init__(self, arrays: Mapping[str, NDArray[Any]], embedding: Sentences | None) -> None:
        super().__init__(arrays, embedding)
        if arrays["weights"].shape != (BUCKETS,):
            raise ValueError("the weights of the regression do not fit")
        check_trees(arrays, len(FEATURES))

    @classmethod
    def _others(cls, words: Any, forms: NDArray[np.float32], targets: Floats, seed: int) -> dict[str, Any]:
        linear = Ridge(alpha=STRENGTH, solver="lsqr", tol=1e-4).fit(words.astype(np.float64), targets)
        fitted = {"weights": linear.coef_.astype(np.float32), "constant": np.array(linear.intercept_)}
        return {**fitted, **grow(forms, targets, seed)}

    def _score(self, queries: Sequence[Query]) -> Floats:
        words, forms, about = self._read(queries)
        linear = words @ self.arrays["weights"] + self.arrays["constant"].item()
        mean = (linear + predict(self.arrays, forms) + self._neighbours(words, forms, about)) / 3
        return sigmoid(STEEPNESS * (mean - 0.5))


def _weighted(counts: Any, idf: NDArray[np.float32]) -> Any:
    """Unit TF-IDF vectors, (1 + ln count) * idf, sparse float32 [queries, BUCKETS]."""
    found = csr_array(counts).astype(np.float32)
    found.data = (1.0 + np.log(found.data)) * idf[found.indices]
    found.eliminate_zeros()
    return normalize(found, copy=False)


def _unit(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.float32(1e-9))


def _standardized(forms: NDArray[np.float32], arrays: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
    return np.clip((forms - arrays["mean"]) / arrays["deviation"], -FARTHEST, FARTHEST)


def grow(features: NDArray[np.float32], targets: Floats, seed: int) -> dict[str, NDArray[Any]]:
    """Boosted regression trees (Friedman 2002) on ``features`` [rows, columns], as arrays [TREES, NODES]. A leaf is its
    own child. Pickled scikit-learn models could contain code.
    """
    model = GradientBoostingRegressor(
        n_estimators=TREES,
        max_depth=DEPTH,
        learning_rate=RATE,
        subsample=0.5,
        max_features=0.2,
        min_samples_leaf=int(np.clip(len(targets) // 50, 3, 50)),
        random_state=seed,
    ).fit(features, targets)
    children = np.tile(np.arange(NODES, dtype=np.int16), (2, len(model.estimators_), 1))
    feature, limit, value = (np.zeros(children.shape[1:], kind) for kind in (np.int16, np.float64, np.float64))
    for number, (one,) in enumerate(model.estimators_):
        tree, own = one.tree_, slice(one.tree_.node_count)
        inner = np.flatnonzero(tree.children_left >= 0)
        children[0, number, inner], children[1, number, inner] = tree.children_left[inner], tree.children_right[inner]
        feature[number, inner], limit[number, inner] = tree.feature[inner], tree.threshold[inner]
        value[number, own] = RATE * tree.value[:, 0, 0]
    return {"children": children, "feature": feature, "limit": limit, "value": value, "base": model.init_.constant_}


def check_trees(arrays: Mapping[str, NDArray[Any]], columns: int) -> None:
    children, feature, shape = arrays["children"], arrays["feature"], arrays["value"].shape
    if children.shape != (2, *shape) or not feature.shape == arrays["limit"].shape == shape or len(shape) != 2:
        raise ValueError("the arrays of the trees do not fit")
    for numbers, end in ((children, shape[1]), (feature, columns)):
        if numbers.dtype.kind != "i" or not 0 <= numbers.min() <= numbers.max() < end:
            raise ValueError("an index in the arrays of the trees is out of range")


def predict(arrays: Mapping[str, NDArray[Any]], features: NDArray[np.float32]) -> Floats:
    """float64 [rows] of ``features`` [rows, columns]."""
    rows, trees = np.arange(len(features))[:, None], np.arange(len(arrays["value"]))
    node = np.zeros((len(features), len(trees)), np.intp)
    for _ in range(DEPTH):
        above = features[rows, arrays["feature"][trees, node]] > arrays["limit"][trees, node]
        node = arrays["children"][above.astype(np.intp), trees, node]
    return arrays["base"].item() + arrays["value"][trees, node].sum(axis=1)
