"""What a step costs, learned from samples: between known sizes, beyond them, and with more context."""

from __future__ import annotations

import math

import pytest

from ianvs_specdec.lengths.costs import SURPRISE, Timing


def timing(samples, context=0):
    """``samples``: size -> seconds of each of its steps."""
    learned = Timing()
    for size, seconds in samples.items():
        for one in seconds:
            learned.add(size, one, context)
    return learned


def test_between_two_sizes_it_is_the_line_through_them():
    learned = timing({2: [1.0] * 3, 4: [2.0] * 3})
    assert [learned.at(size, 0) for size in (1, 2, 2.5, 3, 4)] == pytest.approx([1.0, 1.0, 1.25, 1.5, 2.0])


def test_beyond_the_largest_size_the_last_slope_goes_on():
    assert timing({1: [1.0] * 3, 4: [2.5] * 3}).at(7, 0) == pytest.approx(4.0)
    assert timing({1: [1.0] * 3}).at(11, 0) == pytest.approx(1.0)


def test_one_late_step_of_three_counts_for_nothing():
    assert timing({1: [1.0, 9.0, 1.0]}).at(1, 0) == pytest.approx(1.0)
    assert timing({1: [1.0, 0.5, 1.0]}).at(1, 0) == pytest.approx(1.0)


def test_a_size_seen_once_is_not_believed_to_be_slow():
    assert timing({1: [1.0] * 3, 2: [50.0]}).at(2, 0) == pytest.approx(SURPRISE)
    assert timing({1: [1.0] * 3, 2: [50.0] * 3}).at(2, 0) == pytest.approx(50.0)


def test_more_tokens_never_cost_less():
    learned = timing({1: [3.0] * 3, 2: [2.0] * 3, 3: [4.0] * 3})
    assert [learned.at(size, 0) for size in (1, 2, 3)] == pytest.approx([2.0, 2.0, 4.0])


def test_nothing_known_costs_nothing_and_samples_are_counted():
    learned = timing({})
    assert learned.at(3, 100) == 0.0
    assert learned.samples(1) == 0
    learned.add(1, 1.0, 0)
    learned.add(1, 1.0, 0)
    assert (learned.samples(1), learned.samples(2)) == (2, 0)


def test_steps_slow_down_with_the_context_that_they_read():
    learned = Timing()
    for context in [*range(0, 2000, 20)] * 3:
        learned.add(1, math.exp(2e-4 * context), context)
    assert learned.per_token == pytest.approx(2e-4, rel=0.25)
    assert learned.at(1, 1500) == pytest.approx(math.exp(0.3), rel=0.1)
    assert timing({1: [1.0, 0.9, 0.8]}, context=500).per_token == 0.0
