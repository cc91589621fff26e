"""Flips and score changes of a router with known scores."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from ianvs_specdec.common.types import Query
from ianvs_specdec.routing.evaluation.robustness import robustness
from ianvs_specdec.routing.outcomes.recorded import Floats


def test_flips_and_changes_with_intervals() -> None:
    scores = np.array([0.2, 0.4, 0.6, 0.8] * 25)
    after = {"case": dict(enumerate(scores + 0.2)), "options": {0: 0.2, 3: 0.3}, "typos": {}}
    reworded = {kind: {place: Query((str(now),)) for place, now in of.items()} for kind, of in after.items()}

    def score(queries: Sequence[Query]) -> Floats:
        return np.array([float(query.turns[0]) for query in queries])

    found = robustness(scores, reworded, score, lambda given: (given >= 0.5).astype(np.intp), resamples=400, seed=0)
    values = {name: one.value for name, one in found.items()}
    expected = {"case": (25, 0.2), "options": (50, 0.25), "all": (26 / 1.02, 20.5 / 102)}
    for kind, numbers in expected.items():
        assert [values[f"{name}:{kind}"] for name in ("flips", "change")] == pytest.approx(numbers)
    # A share of 1/4 of 100 queries, by the bootstrap.
    assert found["flips:case"].low == pytest.approx(25 - 1.96 * np.sqrt(25 * 75 / 100), abs=1.5)
    assert found["flips:case"].high == pytest.approx(25 + 1.96 * np.sqrt(25 * 75 / 100), abs=1.5)
    assert not [name for name in found if name.endswith("typos")]
