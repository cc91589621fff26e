"""The logistic classifier on recorded answers of two large models."""

from __future__ import annotations

import numpy as np
import pytest

from ianvs_specdec.benchmarks import routellm
from ianvs_specdec.common.types import Query
from ianvs_specdec.routing.outcomes.recorded import Outcomes
from tests.routing.learned.subjects import apgr, fitted
from tests.support.paths import shared_file


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    path = shared_file("data", "routellm", "mmlu_responses_csv.tar.gz")
    records = list(routellm.read(path))
    queries = tuple(Query((record.query,), id=record.id, group=record.group) for record in records)
    return Outcomes(
        queries,
        np.array([record.edge_correct for record in records], dtype=float),
        np.array([record.cloud_correct for record in records], dtype=float),
    )


@pytest.mark.slow
@pytest.mark.parametrize(("by", "seed", "least"), [("row", 101, 0.68), ("group", 101, 0.58)])
def test_recorded_outcomes_of_two_large_models(recorded, by, seed, least):
    rest, held = recorded.split(by, 0.25, seed)
    scores = fitted("logistic", rest).score(held.queries)
    assert apgr(scores, held.gain) > least
