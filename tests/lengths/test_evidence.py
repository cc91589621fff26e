"""Counts of right and wrong guesses, what a task's rates lean on, and what a request's own guesses say."""

from __future__ import annotations

import pytest

from ianvs_specdec.lengths.evidence import LEVELS, PRIOR, Counts, Task


def test_levels_that_held_are_trials_and_the_one_that_did_not_is_a_miss_of_its_weight():
    counts = Counts(memory=2)
    counts.add(passed=1, failed=True, weight=3.0)
    assert (counts.tried[:3], counts.missed[:3]) == ([1.0, 3.0, 0.0], [0.0, 3.0, 0.0])
    counts.add(passed=2, failed=False, weight=3.0)
    assert (counts.tried[:3], counts.missed[:3]) == ([1.5, 2.5, 0.0], [0.0, 1.5, 0.0])
    assert counts.rate(1, 0.5) == pytest.approx((1.5 + PRIOR * 0.5) / (2.5 + PRIOR))


def test_a_task_leans_on_all_requests_until_it_has_counts_of_its_own():
    everything = Counts(memory=10**9)
    good, bad = Task(everything), Task(everything)
    for _ in range(40):
        everything.add(passed=3, failed=False, weight=1.0)
        good.counts.add(passed=3, failed=False, weight=1.0)
        everything.add(passed=1, failed=True, weight=1.0)
        bad.counts.add(passed=1, failed=True, weight=1.0)
    fresh = Task(everything)
    for task in (good, bad):
        task.settle()
    assert fresh.missing[1] == pytest.approx(0.5, abs=0.02)
    assert good.missing[1] < 0.05
    assert bad.missing[1] > 0.95
    assert good.missing[2] < fresh.missing[2] <= bad.missing[2]


@pytest.mark.parametrize("failed", [True, False])
def test_a_requests_own_guesses_count_where_it_has_tried(failed):
    task, request = Task(Counts(memory=100)), Counts(memory=10)
    for _ in range(30):
        request.add(passed=1, failed=failed, weight=1.0)
    misses = task.misses(request)
    assert len(misses) == LEVELS
    assert misses[0] < task.missing[0]
    assert (misses[1] > 0.8) if failed else (misses[1] == task.missing[1])
    assert misses[2:] == task.missing[2:]
