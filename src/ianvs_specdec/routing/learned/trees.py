"""Boosted regression trees on dense features: grown by scikit-learn, kept as arrays, evaluated by numpy alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ianvs_specdec.routing.outcomes.recorded import Floats

TREES, DEPTH, RATE = 160, 3, 0.05
ENSEMBLES = 3
"""The mean of so many, which differ by what they draw at random, is less a matter of chance than one."""
BLOCK = 1024
"""Rows that are evaluated together."""


class Trees:
    """The sum of trees. ``feature`` (int32), ``limit`` (float32) and ``value`` (float64) are [trees, nodes]; the
    children of node n are 2n + 1, where the feature does not exceed the limit, and 2n + 2. ``base`` is added.
    """

    NAMES = ("feature", "limit", "value")

    def __init__(self, base: float, feature: NDArray[np.int32], limit: NDArray[np.float32], value: Floats) -> None:
        self.base, self.feature, self.limit, self.value = base, feature, limit, value

    @classmethod
    def fit(cls, features: NDArray[np.float32], targets: Floats, seed: int) -> Trees:
        """Grow trees on ``features`` [rows, features] by stochastic gradient boosting (Friedman 2002)."""
        grown = [_grown(features, targets, ENSEMBLES * seed + number) for number in range(ENSEMBLES)]
        shape = (sum(len(model.estimators_) for model in grown), 2 ** (DEPTH + 1) - 1)
        empty = np.zeros(shape, np.int32), np.zeros(shape, np.float32), np.zeros(shape)
        trees = cls(float(grown[0].init_.constant_.item()), *empty)
        for number, tree in enumerate(tree for model in grown for (tree,) in model.estimators_):
            trees._take(number, tree.tree_)
        trees.value *= RATE / ENSEMBLES
        return trees

    def _take(self, number: int, tree: Any) -> None:
        """Copy a tree of scikit-learn; below a leaf that is not at the bottom everything has the leaf's value."""
        places = [(0, 0)]
        while places:
            place, node = places.pop()
            self.value[number, place] = tree.value[node].item()
            below = (2 * place + 1, 2 * place + 2)
            children = (int(tree.children_left[node]), int(tree.children_right[node]))
            if below[1] >= self.value.shape[1]:
                continue
            if children[0] < 0:
                children = (node, node)
            else:
                self.feature[number, place] = tree.feature[node]
                self.limit[number, place] = _below(tree.threshold[node])
            places += zip(below, children, strict=True)

    def __call__(self, features: NDArray[np.float32]) -> Floats:
        """float64 [rows] of ``features`` [rows, features]."""
        blocks = [self._block(features[start : start + BLOCK]) for start in range(0, len(features), BLOCK)]
        return np.concatenate(blocks) if blocks else np.zeros(0)

    def _block(self, features: NDArray[np.float32]) -> Floats:
        rows, trees = np.arange(len(features))[:, None], np.arange(len(self.value))[None, :]
        node = np.zeros((len(features), len(self.value)), dtype=np.intp)
        while 2 * node[0, 0] + 1 < self.value.shape[1]:
            above = features[rows, self.feature[trees, node]] > self.limit[trees, node]
            node = 2 * node + 1 + above
        return self.base + self.value[trees, node].sum(axis=1)

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {"base": np.array(self.base), **{name: getattr(self, name) for name in self.NAMES}}

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]]) -> Trees:
        """From what ``arrays`` gave. Raises ValueError if the arrays do not fit."""
        feature, limit, value = (arrays[name] for name in cls.NAMES)
        if not feature.shape == limit.shape == value.shape or value.ndim != 2 or (value.shape[1] + 1).bit_count() != 1:
            raise ValueError("the arrays of the trees do not fit")
        return cls(float(arrays["base"]), feature, limit, value)


def _grown(features: NDArray[np.float32], targets: Floats, seed: int) -> Any:
    from sklearn.ensemble import GradientBoostingRegressor

    return GradientBoostingRegressor(
        n_estimators=TREES,
        max_depth=DEPTH,
        learning_rate=RATE,
        subsample=0.5,
        max_features=0.2,
        min_samples_leaf=int(np.clip(len(targets) // 50, 3, 50)),
        random_state=seed,
    ).fit(features, targets)


def _below(limit: np.float64) -> np.float32:
    """The greatest float32 that does not exceed ``limit``: features are float32, so that it divides them alike."""
    nearest = np.float32(limit)
    return nearest if np.float64(nearest) <= limit else np.nextafter(nearest, np.float32(-np.inf))
