"""What steps and drafts cost, learned from samples: between known sizes, beyond them, with more context, on a machine
that gets busy."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from ianvs_specdec.lengths.costs import SURPRISE, DraftCosts, StepCosts


def costs(samples, context=0):
    """``samples``: rows -> seconds of each of its steps."""
    learned = StepCosts()
    for rows, seconds in samples.items():
        for one in seconds:
            learned.add(rows, one, context)
    return learned


def at(learned, *rows, context=0):
    return learned.at(np.array(rows, dtype=float), context).tolist()


def test_between_two_sizes_it_is_the_line_through_them():
    learned = costs({2: [1.0] * 3, 4: [2.0] * 3})
    assert at(learned, 1, 2, 2.5, 3, 4) == pytest.approx([1.0, 1.0, 1.25, 1.5, 2.0])


def test_beyond_the_largest_size_it_grows_as_over_the_last_doubling():
    assert at(costs({1: [1.0] * 3, 4: [2.5] * 3}), 7) == pytest.approx([4.0])
    assert at(costs({1: [1.0] * 3, 7: [3.0] * 3, 8: [3.6] * 3}), 12) == pytest.approx([3.6 + 4 * (3.6 - 2.0) / 4])
    assert at(costs({1: [1.0] * 3}), 11) == pytest.approx([1.0])


def test_one_late_step_of_three_counts_for_little():
    assert at(costs({1: [1.0, 9.0, 1.0]}), 1) == pytest.approx([1.0], rel=0.05)
    assert at(costs({1: [1.0, 0.9, 1.0]}), 1) == pytest.approx([1.0], rel=0.05)


def test_a_size_seen_once_is_not_believed_to_be_slow():
    assert at(costs({1: [1.0] * 3, 2: [50.0]}), 2) == pytest.approx([SURPRISE])
    assert at(costs({1: [1.0] * 3, 2: [50.0] * 3}), 2) == pytest.approx([50.0])


def test_more_tokens_never_cost_less():
    learned = costs({1: [3.0] * 3, 2: [2.0] * 3, 3: [4.0] * 3})
    assert at(learned, 1, 2, 3) == pytest.approx([2.0, 2.0, 4.0])
    learned = costs({1: [1.0] * 9, 2: [5.0] * 1, 3: [2.0] * 9})
    assert at(learned, 2, 3) == pytest.approx([2.0, 2.0], rel=0.05)


def test_nothing_known_costs_nothing_and_samples_are_counted():
    learned = costs({})
    assert at(learned, 3, context=100) == [0.0]
    assert learned.samples == 0
    learned.add(1, 1.0, 0)
    learned.add(5, 1.0, 0)
    assert learned.samples == 2


def test_steps_slow_down_with_the_context_that_they_read():
    learned, rng = StepCosts(), random.Random(0)
    for _ in range(300):
        context = rng.randrange(2000)
        learned.add(1, math.exp(2e-4 * context), context)
    assert learned.per_token == pytest.approx(2e-4, rel=0.25)
    assert at(learned, 1, context=1500) == pytest.approx([math.exp(0.3)], rel=0.1)
    assert costs({1: [1.0, 0.9, 0.8]}, context=500).per_token == 0.0


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_when_times_change_two_sizes_tell_the_others(factor):
    learned = costs({1: [1.0] * 30, 8: [2.0] * 30, 16: [3.0] * 30, 32: [9.0] * 30})
    assert not learned.outdated(1)
    for _ in range(4):
        learned.add(8, 2.0 * factor, 0)
    assert learned.outdated(1)
    assert not learned.outdated(8)
    assert at(learned, 8) == pytest.approx([2.0 * factor])
    assert at(learned, 1)[0] <= min(1.0, 2.0 * factor)
    for _ in range(3):
        learned.add(1, 1.0 * factor, 0)
    assert at(learned, 1, 8, 15) == pytest.approx([factor, 2 * factor, 3 * factor], rel=0.05)


def test_a_size_whose_first_step_was_late_does_not_end_an_era():
    learned = costs({1: [1.0] * 9, 8: [20.0, 2.0, 2.0]})
    assert not learned.outdated(1)
    assert at(learned, 1, 8) == pytest.approx([1.0, 2.0])


def test_smaller_sizes_of_the_old_era_are_still_the_best_guess():
    learned = costs({1: [1.0] * 9, 8: [2.0] * 9, 16: [3.0] * 9})
    for rows in (8, 16):
        for _ in range(4):
            learned.add(rows, rows / 2, 0)
    assert at(learned, 1, 8, 16) == pytest.approx([1.0, 4.0, 8.0])


def test_a_few_slow_steps_among_others_change_nothing():
    learned = costs({1: [1.0] * 10 + [3.0, 1.0] * 10, 8: [2.0] * 10})
    assert not learned.outdated(1)
    assert at(learned, 1, 8) == pytest.approx([1.0, 2.0])


def drafting(rng, asked):
    depth, nodes, behind = rng.randint(1, 8), rng.randint(asked, 8 * asked), rng.choice([0, 0, 0, 100])
    return asked, depth, nodes, behind


def cost(asked, depth, nodes, behind):
    return 1e-4 + 2e-4 * asked + 5e-4 * depth + 3e-5 * nodes + 1e-5 * behind


def test_drafts_cost_what_they_did_by_requests_levels_tokens_and_what_was_caught_up_with():
    learned, rng = DraftCosts(), random.Random(0)
    for _ in range(600):
        terms = drafting(rng, rng.randint(0, 6)) if rng.random() < 0.8 else (0, 0, 0, 0)
        learned.add(*terms, cost(*terms) * rng.lognormvariate(0, 0.02))
    for terms in ((1, 4, 4, 0), (6, 2, 12, 0), (3, 8, 20, 100), (0, 0, 0, 0)):
        assert learned.at(*(np.array([term]) for term in terms))[0] == pytest.approx(cost(*terms), rel=0.1)


def test_one_slow_draft_is_not_believed_and_what_is_not_asked_stays_known():
    learned = DraftCosts()
    for _ in range(50):
        learned.add(1, 4, 4, 0, 1e-3)
    learned.add(1, 4, 4, 0, 1.0)
    for _ in range(500):
        learned.add(0, 0, 0, 0, 1e-5)
    (known,) = learned.at(*(np.array([term]) for term in (1, 4, 4, 0)))
    assert 0.9e-3 < known < 1.1e-3
