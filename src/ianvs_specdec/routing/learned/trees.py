"""Boosted regression trees (Friedman 2002): grown by scikit-learn, kept as arrays, which hold no code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import GradientBoostingRegressor

from ianvs_specdec.routing.outcomes.recorded import Floats

TREES, DEPTH, RATE = 160, 3, 0.05
NODES = 2 ** (DEPTH + 1) - 1


def grow(features: NDArray[np.float32], targets: Floats, seed: int) -> dict[str, NDArray[Any]]:
    """Arrays [TREES, NODES] of trees on ``features`` [rows, columns]. A leaf is its own child."""
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
    """Raise ValueError unless these are arrays of trees on so many columns."""
    children, feature, shape = arrays["children"], arrays["feature"], arrays["value"].shape
    if children.shape != (2, *shape) or not feature.shape == arrays["limit"].shape == shape or len(shape) != 2:
        raise ValueError("the arrays of the trees do not fit")
    for numbers, end in ((children, shape[1]), (feature, columns)):
        if numbers.dtype.kind != "i" or not 0 <= numbers.min() <= numbers.max() < end:
            raise ValueError("the arrays of the trees name what is not there")


def predict(arrays: Mapping[str, NDArray[Any]], features: NDArray[np.float32]) -> Floats:
    """float64 [rows] of ``features`` [rows, columns]."""
    rows, trees = np.arange(len(features))[:, None], np.arange(len(arrays["value"]))
    node = np.zeros((len(features), len(trees)), np.intp)
    for _ in range(DEPTH):
        above = features[rows, arrays["feature"][trees, node]] > arrays["limit"][trees, node]
        node = arrays["children"][above.astype(np.intp), trees, node]
    return arrays["base"].item() + arrays["value"][trees, node].sum(axis=1)
