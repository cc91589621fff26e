"""How often guesses miss, by depth, task and request: what is heard of one says less of the others."""

from __future__ import annotations

import random

import numpy as np
import pytest

from ianvs_specdec.lengths.evidence import (
    DIFFICULTIES,
    FIRST_GUESS,
    HARDEST,
    LEVELS,
    REQUEST,
    TASKS,
    Belief,
    Evidence,
)


def learn(known, subject, accepted, failed, times=1, drafted=True, width=1.0):
    for _ in range(times):
        known.step()
        known.learn(subject, drafted, accepted, failed, width)
        known.settle()


def miss(known, subject, level=0):
    return float(known.misses[known.difficulty(subject)][min(level, known.misses.shape[1] - 1)])


def test_nothing_known_is_the_first_guess():
    known = Evidence()
    subject = known.request("a")
    assert DIFFICULTIES[known.difficulty(subject)] == pytest.approx(FIRST_GUESS, abs=0.13)
    assert known.found(subject) > 0.5


def test_what_was_learned_of_a_task_is_expected_of_its_next_request_and_less_of_another_task():
    known = Evidence()
    for _ in range(30):
        learn(known, known.request("good"), 3, False)
        learn(known, known.request("bad"), 0, True)
    good, other, bad = (miss(known, known.request(task)) for task in ("good", "other", "bad"))
    assert good < 0.2 < other < 0.8 < bad


def test_a_requests_own_drafts_outweigh_its_tasks():
    known = Evidence()
    for _ in range(60):
        learn(known, known.request("a"), 3, False)
    hard = known.request("a")
    learn(known, hard, 0, True, times=8)
    assert miss(known, hard) > 0.45
    assert miss(known, known.request("a")) < 0.25


def test_a_request_is_known_anew_without_anything_being_settled():
    known = Evidence()
    subject = known.request("a")
    before = known.difficulty(subject)
    for _ in range(3):
        known.learn(subject, True, 0, True, 1.0)
    assert known.difficulty(subject) > before


def test_depths_are_told_apart():
    known, subject = Evidence(), None
    for number in range(400):
        if number % 20 == 0:
            subject = known.request("a")
        learn(known, subject, 2, True)
    assert miss(known, subject, 0) < 0.1
    assert miss(known, subject, 1) < 0.1
    assert miss(known, subject, 2) > 0.7


def test_a_level_that_nobody_reached_is_like_the_others_of_that_difficulty():
    known = Evidence()
    subject = known.request("a")
    learn(known, subject, 2, False, times=40)
    assert miss(known, subject, LEVELS - 1) < 0.15


@pytest.mark.parametrize("accepted", [0, 1])
def test_what_drafts_of_one_token_tell_holds_for_longer_ones(accepted):
    """How deeper levels compare with the first one is as before."""
    known = Evidence()
    subject = known.request("a")
    learn(known, subject, 2, True, times=4)
    learn(known, subject, 1, False, times=40)
    before = known.misses
    learn(known, subject, accepted, not accepted, times=60)
    assert known.misses == pytest.approx(before)
    assert abs(miss(known, subject) - accepted) > 0.9


def test_much_that_is_heard_at_a_time_does_not_overshoot():
    """Trials tell where they were made: at odds of 20 to 1 that a guess is wrong, a hundred hits say no more than that
    it is otherwise."""
    belief = Belief(REQUEST, mean=3.0)
    for _ in range(100):
        belief.hear(-0.95, 0.05, 0.0)
    belief.settle(1)
    assert 1.5 < belief.mean < 3.0


def test_a_miss_in_a_wide_tree_tells_more_than_one_in_a_chain():
    chain, tree = Evidence(), Evidence()
    narrow, wide = chain.request("a"), tree.request("a")
    learn(chain, narrow, 1, True, times=10)
    learn(tree, wide, 1, True, times=10, width=3.0)
    assert tree.difficulty(wide) > chain.difficulty(narrow)


def test_no_draft_at_all_is_another_matter_than_a_wrong_one():
    known = Evidence()
    subject = known.request("a")
    before = known.difficulty(subject)
    learn(known, subject, 0, False, times=30, drafted=False)
    assert known.found(subject) < 0.15
    assert known.difficulty(subject) == before
    learn(known, subject, 2, False, times=60)
    assert known.found(subject) > 0.5


def test_rates_come_out_as_they_are():
    known, rng = Evidence(), random.Random(0)
    for _ in range(40):
        subject = known.request("a")
        for _ in range(40):
            accepted = next((level for level in range(4) if rng.random() < 0.3), 4)
            learn(known, subject, accepted, accepted < 4)
    assert np.mean([miss(known, subject, level) for level in range(4)]) == pytest.approx(0.3, abs=0.06)


def test_what_is_hopeless_is_not_made_more_so():
    """So that it is found out soon when it gets better."""
    known = Evidence()
    subject = known.request("a")
    learn(known, subject, 0, True, times=3000)
    assert known.difficulty(subject) == len(DIFFICULTIES) - 1
    learn(known, subject, 4, False, times=12)
    assert DIFFICULTIES[known.difficulty(subject)] < HARDEST - 1.5


def test_time_blurs_what_is_known_up_to_what_nothing_is_known_of():
    belief = Belief(REQUEST)
    belief.hear(surprise=-5.0, informed=5.0, others=0.0)
    belief.settle(1)
    sharp, mean = belief.variance, belief.mean
    belief.settle(1 + REQUEST.memory // 2)
    assert sharp < belief.variance < REQUEST.variance
    belief.settle(10 * REQUEST.memory)
    assert belief.variance == REQUEST.variance
    assert belief.mean == mean


def test_what_others_may_explain_says_less():
    alone, shared = Belief(REQUEST), Belief(REQUEST)
    alone.hear(surprise=2.0, informed=1.0, others=0.0)
    shared.hear(surprise=2.0, informed=1.0, others=4.0)
    for belief in (alone, shared):
        belief.settle(1)
    assert alone.mean > 2 * shared.mean > 0


def test_the_number_of_tasks_is_bounded():
    known = Evidence()
    tasks = {id(known.request(str(number)).task) for number in range(3 * TASKS)}
    assert len(tasks) == TASKS + 1
    assert known.request("one more").task is known.request("another").task
    assert known.request("0").task is not known.request("one more").task
