"""Counts of right and wrong guesses, what a task's rates lean on, and what a request's own guesses say."""

from __future__ import annotations

import pytest

from ianvs_specdec.lengths.evidence import EVERYTHING, LEVELS, PRIOR, REQUEST, Counts, Everything, Trials


def test_levels_that_held_are_trials_and_the_one_that_did_not_is_a_miss_of_its_weight():
    counts = Counts(memory=2)
    Counts.learn([counts], Trials([1], [True], [3.0]))
    assert (counts.tried[:3].tolist(), counts.missed[:3].tolist()) == ([1.0, 3.0, 0.0], [0.0, 3.0, 0.0])
    Counts.learn([counts], Trials([2], [False], [3.0]))
    assert (counts.tried[:3].tolist(), counts.missed[:3].tolist()) == ([1.5, 2.5, 0.0], [0.0, 1.5, 0.0])


def test_each_learns_from_its_own_drafts():
    first, second = Counts(REQUEST), Counts(REQUEST)
    Counts.learn([first, second, first], Trials([1, 2, 1], [True, False, False], [1.0, 1.0, 1.0]))
    assert first.tried[:3].tolist() == pytest.approx([2.0, 1.0, 0.0])
    assert second.tried[:3].tolist() == pytest.approx([1.0, 1.0, 0.0])
    assert (first.missed[1], second.missed.sum()) == (1.0, 0.0)


def everything(**drafts):
    """``drafts``: for each task passed and failed of each of its 40 drafts."""
    known = Everything()
    for name, (passed, failed) in drafts.items():
        for _ in range(40):
            trials = Trials([passed], [failed], [1.0])
            Counts.learn([known.counts], trials)
            Counts.learn([known.task(name)], trials)
    known.settle(0)
    return known


def test_a_task_leans_on_all_requests_until_it_has_counts_of_its_own():
    known = everything(good=(3, False), bad=(1, True))
    fresh, good, bad = known.misses([(known.task(name), Counts(REQUEST)) for name in ("fresh", "good", "bad")])
    assert fresh[1] == pytest.approx(known.common[1])
    assert 0.4 < fresh[1] < 0.7
    assert good[1] < 0.05
    assert bad[1] > 0.95
    assert good[2] < fresh[2] <= bad[2]


def test_a_level_that_nobody_reached_is_about_as_good_as_the_one_before_it():
    known = everything(good=(2, False))
    assert known.common[2] < 0.2
    assert known.common[20] < 0.3
    assert (Everything().common == 0.5).all()


def test_everything_forgets_too():
    known = everything(changed=(1, True))
    assert known.counts.tried[1] < EVERYTHING


@pytest.mark.parametrize("failed", [True, False])
def test_a_requests_own_guesses_count_where_it_has_tried(failed):
    known, own = Everything(), Counts(REQUEST)
    for _ in range(30):
        Counts.learn([own], Trials([1], [failed], [1.0]))
    (misses,) = known.misses([(known.task("a"), own)])
    assert len(misses) == LEVELS
    assert misses[0] == pytest.approx(PRIOR * 0.5 / (own.tried[0] + PRIOR))
    assert (misses[1] > 0.8) if failed else (misses[1] == 0.5)
    assert (misses[2:] == 0.5).all()
