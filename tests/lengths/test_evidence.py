"""Counts of right and wrong guesses, what a task's rates lean on, and how far a request's own evidence is trusted."""

from __future__ import annotations

import pytest

from ianvs_specdec.lengths.evidence import STRENGTHS, Counts, Task, Trust


def test_levels_that_held_are_trials_and_the_one_that_did_not_is_a_miss_of_its_weight():
    counts = Counts(keep=0.5)
    counts.add(passed=1, failed=True, weight=3.0)
    assert (counts.tried[:3], counts.missed[:3]) == ([1.0, 3.0, 0.0], [0.0, 3.0, 0.0])
    counts.add(passed=2, failed=False, weight=3.0)
    assert (counts.tried[:3], counts.missed[:3]) == ([1.5, 2.5, 0.0], [0.0, 1.5, 0.0])


def test_a_task_leans_on_all_requests_until_it_has_counts_of_its_own():
    everything = Counts(keep=1.0)
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
def test_what_foresaw_the_guesses_is_trusted(failed):
    """The request's own guesses always failed, or never; its task says every second time."""
    own, task = Trust(), Trust()
    for _ in range(30):
        own.learn(tried=10.0, missed=10.0 * failed, prior=0.5, width=1.0, failed=failed)
        task.learn(tried=10.0, missed=10.0 * failed, prior=0.5, width=1.0, failed=not failed)
    assert own.weights[0] > own.weights[1] > own.weights[2]
    assert task.weights[2] > task.weights[1] > task.weights[0]
    assert sum(own.weights) == pytest.approx(1)
    assert abs(own.miss(10.0, 10.0 * failed, 0.5) - failed) < abs(task.miss(10.0, 10.0 * failed, 0.5) - failed)


def test_trust_before_any_guess_is_shared_alike():
    trust = Trust()
    assert trust.trials(1000.0) == pytest.approx(sum(STRENGTHS) / 3)
    assert trust.trials(1.0) == pytest.approx((0.2 + 1 + 1) / 3)
    expected = sum((3 + strength * 0.5) / (4 + strength) for strength in STRENGTHS) / 3
    assert trust.miss(tried=4.0, missed=3.0, prior=0.5) == pytest.approx(expected)
