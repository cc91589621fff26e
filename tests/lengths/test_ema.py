"""SGLang's adaptive thresholds."""

from __future__ import annotations

import pytest

from ianvs_specdec import lengths
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.lengths.ema import INTERVAL, WARM_UP
from tests.support.loads import running, stepped


def budgets(length, steps, accepted, count=1):
    return [stepped(length, running(count), accepted)[0] for _ in range(steps)]


def test_it_begins_in_the_middle_and_waits_before_it_changes():
    length = lengths.create("ema:1,3,7")
    assert budgets(length, WARM_UP + INTERVAL, 99) == [3] * (WARM_UP + INTERVAL)
    assert budgets(length, INTERVAL, 99) == [7] * INTERVAL


def test_it_goes_down_where_little_is_accepted_and_up_again_where_much_is():
    length = lengths.create("ema:7,1,3")
    assert budgets(length, 60, 0)[-1] == 1
    assert budgets(length, 60, 99)[-1] == 7


def test_between_two_thresholds_it_stays_where_it_is():
    """2.4 tokens on average: up from 3 takes 2.5, down from 5 takes 2.25."""
    length, budget = lengths.create("ema:3,5"), 5
    for before in (99, 0):
        budgets(length, 60, before)
        found = [budgets(length, 1, 2 + (step % 5 < 2))[0] for step in range(200)]
        assert set(found[100:]) == {budget}
        budget = 3


def test_each_range_of_batch_sizes_has_a_state_of_its_own():
    length = lengths.create("ema")
    assert budgets(length, 60, 99)[-1] == 7
    assert budgets(length, 60, 0, count=20)[-1] in (0, 1)
    assert budgets(length, 1, 99) == [7]
    assert budgets(length, 40, 99, count=64) == [0] * 40


def test_after_a_time_without_drafts_it_tries_again():
    length = lengths.create("ema:0,2")
    low = budgets(length, 100, 0)
    assert {0, 2} <= set(low[20:])
    assert budgets(length, 60, 99)[-1] == 2


def test_steps_that_only_read_prompts_teach_nothing():
    length = lengths.create("ema:1,3")
    for _ in range(100):
        stepped(length, running(0), 0)
    assert budgets(length, 1, 0) == [3]


@pytest.mark.parametrize("wrong", ["ema:x", "ema:1,-2", "ema:1,,2"])
def test_what_cannot_be_read_is_told(wrong):
    with pytest.raises(UserError, match="for example ema:1,3,7"):
        lengths.create(wrong)
