"""Counts of right and wrong guesses, what a task's rates lean on, and what a request's own guesses say."""

from __future__ import annotations

import numpy as np
import pytest

from ianvs_specdec.lengths.evidence import LEVELS, STALE, TASKS, Evidence, Trials


def learn(known, rows, passed, failed, times=1, weight=1.0):
    for _ in range(times):
        known.learn([rows], Trials([passed], [failed], [weight]))


def test_levels_that_held_are_trials_and_the_one_that_did_not_is_a_miss_of_its_weight():
    trials = Trials([1, 2], [True, False], [3.0, 3.0])
    assert trials.tried[:, :4].tolist() == [[1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0]]
    assert trials.missed[:, :4].tolist() == [[0.0, 3.0, 0.0, 0.0], [0.0] * 4]
    assert trials.surplus[:, :4].tolist() == [[0.0, 2.0, 0.0, 0.0], [0.0] * 4]


def test_nothing_known_is_as_likely_as_not():
    known = Evidence()
    assert (known.misses([(known.task("a"), known.request())], 5) == 0.5).all()


def test_each_request_leans_on_its_task_and_a_new_task_on_everything():
    known = Evidence()
    good, bad = ((known.task(name), known.request()) for name in ("good", "bad"))
    learn(known, good, 3, False, times=40)
    learn(known, bad, 1, True, times=40)
    fresh = known.task("fresh"), known.request()
    new_good, new_bad = (known.task("good"), known.request()), (known.task("bad"), known.request())
    misses = known.misses([good, bad, fresh, new_good, new_bad], 4)[:, 1]
    assert misses[0] < misses[3] < 0.1
    assert misses[1] > misses[4] > 0.9
    assert 0.3 < misses[2] < 0.9


def test_a_requests_own_guesses_outweigh_its_tasks():
    known = Evidence()
    task = known.task("a")
    learn(known, (task, known.request()), 3, False, times=60)
    other = task, known.request()
    learn(known, other, 1, True, times=8)
    assert known.misses([other], 2)[0, 1] > 0.7
    assert known.misses([(task, known.request())], 2)[0, 1] < 0.4


def test_several_drafts_at_once_count_as_one_after_another():
    at_once, one_by_one = Evidence(), Evidence()
    rows = [(known.task("a"), known.request()) for known in (at_once, one_by_one) for _ in range(2)]
    at_once.learn([rows[0], rows[1], rows[0]], Trials([1, 2, 1], [True, False, True], [1.0] * 3))
    for row, passed, failed in ((rows[2], 1, True), (rows[3], 2, False), (rows[2], 1, True)):
        learn(one_by_one, row, passed, failed)
    assert np.allclose(at_once.misses(rows[:2], 4), one_by_one.misses(rows[2:], 4), atol=0.02)


def test_a_level_that_nobody_reached_is_about_as_good_as_the_one_before_it():
    known = Evidence()
    rows = known.task("a"), known.request()
    learn(known, rows, 2, False, times=40)
    (misses,) = known.misses([rows], 20)
    assert misses[1] < 0.05
    assert misses[1] < misses[2] < 0.2
    assert misses[19] < 0.3


def test_what_is_old_gives_way_to_little_that_is_new_and_depths_are_tried_again():
    known = Evidence()
    rows = known.task("a"), known.request()
    learn(known, rows, 3, True, times=50)
    before = known.misses([rows], 5)[0]
    known.wait(5 * STALE)
    after = known.misses([rows], 5)[0]
    assert before[3] > 0.9 > 0.6 > after[3]
    assert after[1] < 0.1
    learn(known, (rows[0], known.request()), 1, True, times=6)
    assert known.misses([rows], 2)[0, 1] > 0.2


def test_the_number_of_tasks_is_bounded():
    known = Evidence()
    rows = [known.task(str(number)) for number in range(3 * TASKS)]
    assert len(set(rows)) == TASKS + 1
    assert rows[-1] == rows[TASKS] == known.task("one more")
    assert known.task("0") == rows[0]


@pytest.mark.parametrize("number", [5, 100])
def test_rows_of_requests_that_ended_are_used_again_and_know_nothing(number):
    known = Evidence()
    task = known.task("a")
    for _ in range(20):
        rows = [known.request() for _ in range(number)]
        assert len({task, *rows}) == number + 1
        for row in rows[1:]:
            learn(known, (task, row), 1, True)
        if known.crowded:
            known.keep(rows[:1])
    assert len(known._seen) <= 8 * max(number, 8)
    fresh = known.request()
    assert fresh != rows[0]
    assert known.misses([(task, fresh)], LEVELS)[0, 1] == pytest.approx(known.misses([(task, rows[0])], LEVELS)[0, 1])
