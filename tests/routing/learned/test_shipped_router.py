"""The shipped router."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from ianvs_specdec.benchmarks.rows import query_of
from ianvs_specdec.routing.learned.folder import TrainedRouter
from ianvs_specdec.routing.outcomes.recorded import digests
from ianvs_specdec.routing.routers import build_router
from tests.support.paths import EXAMPLE

FOLDER = EXAMPLE / "models" / "router"


@pytest.fixture(scope="module")
def queries():
    lines = (EXAMPLE / "dataset/knowledge/test.jsonl").read_text(encoding="utf-8").splitlines()
    return [query_of(json.loads(line)["question"], None, index) for index, line in enumerate(lines)]


def test_the_folder_is_small_and_has_no_local_paths():
    files = [path for path in FOLDER.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 1_500_000
    assert {path.suffix for path in files} <= {".json", ".npy", ".safetensors"}
    for path in files:
        assert not re.search(rb"/(work|tmp|root|home)/", path.read_bytes()), path.name


def test_it_was_trained_on_no_question_of_the_test_set(queries):
    trained = TrainedRouter.load(FOLDER)
    assert len(trained.seen) > 5000
    assert not np.isin(digests(queries), trained.seen).any()


def test_a_query_gets_the_same_score_alone_and_among_others(queries):
    router = build_router({"name": "LearnedRouter", "path": str(FOLDER)})
    scores = router.trained.score(queries)
    assert ((scores > 0) & (scores < 1)).all()
    # The edge is better at the shortest than at the tallest.
    means = {
        word: np.mean([score for score, query in zip(scores, queries, strict=True) if f"the {word}?" in query.turns[0]])
        for word in ("tallest", "shortest")
    }
    assert means["tallest"] > means["shortest"] + 0.05
    np.testing.assert_allclose([router.score(query) for query in queries[:40]], scores[:40], atol=1e-5)
