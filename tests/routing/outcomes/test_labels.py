"""Labels of Hybrid LLM and others, against their definitions."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Query
from ianvs_specdec.routing.outcomes.labels import soft_labels, targets
from ianvs_specdec.routing.outcomes.recorded import Outcomes


def outcomes(edge, cloud, **samples):
    queries = tuple(Query((f"q{i}",)) for i in range(len(edge)))
    return Outcomes(queries, np.array(edge, dtype=float), np.array(cloud, dtype=float), **samples)


def test_the_four_labels():
    given = outcomes([1.0, 0.0, 0.4, 0.6], [1.0, 1.0, 0.5, 0.0])
    assert targets(given, "hard").tolist() == [0, 1, 1, 0]
    assert targets(given, "hybrid").tolist() == [0, 1, 1, 0]
    assert targets(given, "hybrid", 0.2).tolist() == [0, 1, 0, 0]
    np.testing.assert_allclose(targets(given, "gain"), [0.5, 1.0, 0.55, 0.2])


def test_soft_labels_are_the_shares_of_pairs_at_the_shift_of_largest_spread():
    generator = np.random.default_rng(0)
    edge = tuple(tuple(generator.integers(0, 6, 4) / 5) for _ in range(30))
    cloud = tuple(tuple(generator.integers(0, 6, 3) / 5) for _ in range(30))
    given = outcomes(np.zeros(30), np.ones(30), edge_samples=edge, cloud_samples=cloud)

    def share(query, shift):
        pairs = list(itertools.product(edge[query], cloud[query]))
        return 1 - sum(ours >= round(theirs - shift, 9) - 1e-12 for ours, theirs in pairs) / len(pairs)

    def spread(labels):
        return np.mean([abs(a - b) for a in labels for b in labels])

    labels, shift = soft_labels(given)
    np.testing.assert_allclose(labels, [share(query, shift) for query in range(30)])
    others = [spread([share(query, t) for query in range(30)]) for t in np.arange(0, 1.01, 0.2)]
    assert spread(labels) == pytest.approx(max(others))


def test_a_weak_edge_needs_a_shift_to_tell_queries_apart():
    # The cloud is always better, by little or by much: without a shift all labels would be 1.
    edge, cloud = tuple((0.5 if i % 2 else 0.1,) for i in range(10)), ((0.6,),) * 10
    labels, shift = soft_labels(outcomes(np.zeros(10), np.ones(10), edge_samples=edge, cloud_samples=cloud))
    assert 0.1 <= shift < 0.5
    assert labels.tolist() == [1.0, 0.0] * 5


@pytest.mark.parametrize("kind", ["hard", "hybrid", "gain"])
def test_labels_of_one_class_are_refused(kind):
    with pytest.raises(UserError, match=f"all 3 queries have the {kind} label"):
        targets(outcomes([1, 1, 1], [1, 1, 1]), kind)


def test_unknown_labels_and_missing_samples_are_told():
    with pytest.raises(UserError, match="Did you mean 'hybrid'"):
        targets(outcomes([1, 0], [1, 1]), "hybird")
    with pytest.raises(UserError, match="route label --samples"):
        targets(outcomes([1, 0], [1, 1]), "soft")
