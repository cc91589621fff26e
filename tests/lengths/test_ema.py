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


@pytest.mark.parametrize("wrong", ["ema:x", "ema:1,-2", "ema:1,,2"])
def test_what_cannot_be_read_is_told(wrong):
    with pytest.raises(UserError, match="for example ema:1,3,7"):
        lengths.create(wrong)
