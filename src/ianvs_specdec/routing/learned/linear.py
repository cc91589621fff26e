"""A ridge regression on sparse and dense features: solved by scikit-learn, evaluated by numpy alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ianvs_specdec.routing.learned.features import Features
from ianvs_specdec.routing.learned.words import NGrams
from ianvs_specdec.routing.outcomes.recorded import Floats

STRENGTH = 20.0
"""The squared length of the weights counts so much."""
SURFACE = 0.02
"""A surface number of one standard deviation is as much as this TF-IDF weight."""


class LinearScore:
    """Weights of the terms and of the surface numbers, float32, and the constant."""

    def __init__(self, terms: NDArray[np.float32], surface: NDArray[np.float32], constant: float) -> None:
        self.terms, self.surface, self.constant = terms, surface, constant

    @classmethod
    def fit(cls, ngrams: NGrams, features: Features, targets: Floats) -> LinearScore:
        from scipy.sparse import csr_matrix, hstack
        from sklearn.linear_model import Ridge

        surface = csr_matrix(SURFACE * features.surface.astype(np.float64))
        matrix = hstack([ngrams.matrix(features.weights), surface], format="csr")
        model = Ridge(alpha=STRENGTH, solver="lsqr", tol=1e-4).fit(matrix, targets)
        weights, many = model.coef_.astype(np.float32), len(ngrams.terms)
        return cls(weights[:many], weights[many:], float(model.intercept_))

    def __call__(self, features: Features) -> Floats:
        """float64 [queries]."""
        found = np.array([float(values @ self.terms[numbers]) for numbers, values in features.weights])
        return found + SURFACE * (features.surface @ self.surface).astype(np.float64) + self.constant

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {"linear_terms": self.terms, "linear_surface": self.surface, "constant": np.array(self.constant)}

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]], terms: int) -> LinearScore:
        """From what ``arrays`` gave; there are so many ``terms``. Raises ValueError if the arrays do not fit."""
        weights, surface = arrays["linear_terms"], arrays["linear_surface"]
        if weights.shape != (terms,) or surface.ndim != 1:
            raise ValueError("the arrays of the regression do not fit")
        return cls(weights, surface, float(arrays["constant"]))
