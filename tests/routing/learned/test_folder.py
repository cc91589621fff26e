"""A trained router's folder is written whole, read back as it was, and never takes another folder's place."""

from __future__ import annotations

import numpy as np
import pytest

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Query
from ianvs_specdec.routing.learned.folder import FILE, SEEN, TrainedRouter
from ianvs_specdec.routing.learned.logistic import fit_calibration
from ianvs_specdec.routing.learned.training import (
    ALL,
    RouterRecipe,
    fold_numbers,
    quality_threshold,
    share_threshold,
    train,
)
from ianvs_specdec.routing.outcomes.recorded import Outcomes


def outcomes(count=240, seed=0):
    """Queries about rivers are the ones that the edge gets wrong, mostly."""
    generator = np.random.default_rng(seed)
    hard = generator.random(count) < 0.5
    words = ["the length of the river", "the colour of the stone"]
    queries = tuple(
        Query((f"Tell me {words[0 if h else 1]} number {i}.",), group=f"g{i % 6}") for i, h in enumerate(hard)
    )
    return Outcomes(queries, (generator.random(count) < np.where(hard, 0.1, 0.9)).astype(float), np.ones(count))


@pytest.fixture(scope="module")
def router():
    return train(outcomes(), RouterRecipe(folds=3, label="hybrid"))


def test_a_router_learns_and_is_read_back_as_it_was(router, tmp_path):
    fresh = outcomes(seed=1)
    scores = router.score(fresh.queries)
    assert scores[fresh.gain > 0].mean() > scores[fresh.gain <= 0].mean() + 0.4
    router.save(tmp_path / "router")
    read = TrainedRouter.load(tmp_path / "router")
    np.testing.assert_allclose(read.score(fresh.queries), scores, atol=1e-6)
    assert read.threshold == router.threshold
    assert (read.label, read.epsilon, read.kind) == ("hybrid", 0.0, "logistic")
    assert set(read.seen.tolist()) == set(outcomes().digests().tolist())


def test_the_calibrated_scores_are_probabilities(router):
    fresh = outcomes(2000, seed=2)
    scores = router.score(fresh.queries)
    for chosen in (scores > 0.5, scores <= 0.5):
        assert scores[chosen].mean() == pytest.approx((fresh.gain[chosen] > 0).mean(), abs=0.1)


def test_the_threshold_keeps_the_clouds_quality():
    fresh = outcomes(2000, seed=3)
    router = train(outcomes(600), RouterRecipe(folds=3, keep=0.9))
    sent = router.score(fresh.queries) >= router.threshold
    quality = np.where(sent, fresh.cloud, fresh.edge).mean()
    assert quality >= 0.9
    assert sent.mean() < 0.7


def test_a_router_is_replaced_and_nothing_else_is(router, tmp_path):
    folder = tmp_path / "router"
    router.save(folder)
    router.save(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["router"]
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "love.txt").write_text("dear")
    with pytest.raises(UserError, match="something else than a router"):
        router.save(tmp_path / "letters")
    assert (tmp_path / "letters" / "love.txt").read_text() == "dear"


def test_a_failing_save_leaves_the_old_router(router, tmp_path, monkeypatch):
    folder = tmp_path / "router"
    router.save(folder)
    before = (folder / FILE).read_bytes()

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(type(router.classifier), "save", fail)
    with pytest.raises(OSError, match="disk full"):
        router.save(folder)
    assert (folder / FILE).read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["router"]


@pytest.mark.parametrize("array", [SEEN, "*.npz"])
def test_no_array_is_ever_unpickled(router, tmp_path, array):
    router.save(tmp_path)
    (file,) = tmp_path.glob(array)
    pickled = np.array([{"a": 1}], dtype=object)
    arrays = np.load(file)
    if array == SEEN:
        np.save(file, pickled, allow_pickle=True)
    else:
        np.savez(file, allow_pickle=True, **{**arrays, "more": pickled})
    with pytest.raises(UserError, match=r"cannot be read.*pickle"):
        TrainedRouter.load(tmp_path)


def test_exactly_the_share_that_is_to_be_kept_is_enough():
    scores = np.array([0.25, 0.5, 0.75, 0.875])
    alike = Outcomes(tuple(Query((str(i),)) for i in range(4)), np.full(4, 0.5), np.ones(4))
    assert quality_threshold(scores, alike, 0.5) == 0.9375, (
        "nothing need go to the cloud, whose threshold is the highest one"
    )
    assert quality_threshold(scores, alike, 0.75) == ALL < 0.25
    assert share_threshold(scores, 0.5) == 0.625
    assert share_threshold(scores, 0.49) == 0.8125


def test_calibration_keeps_the_order_and_stays_finite():
    labels = np.array([0.0] * 50 + [1.0] * 50)
    for scores in (np.linspace(0, 1, 100), np.linspace(1, 0, 100), labels, np.full(100, 0.3)):
        calibration = fit_calibration(scores, labels)
        values = calibration(scores)
        assert calibration.slope > 0
        assert 0 < values.min() <= values.max() < 1


def test_folds_by_group_score_each_group_by_others():
    given = outcomes()
    folds = fold_numbers(given, "group", 3, seed=0)
    assert sorted(set(folds)) == [0, 1, 2]
    assert len(set(zip(given.groups, folds, strict=True))) == 6, "each group is in one fold"
    with pytest.raises(UserError, match="fewer --folds"):
        train(given, RouterRecipe(by="group", folds=10))
