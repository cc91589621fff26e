"""Off above so many running requests."""

from __future__ import annotations

import pytest

from ianvs_specdec import lengths
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.engine import Load, Stats
from tests.support.loads import running


@pytest.mark.parametrize(
    ("spec", "tokens"), [("queue:3", 5), ("queue:3:all", 5), ("queue:3:all:7", 7), ("queue:3:new:2", 2)]
)
def test_on_up_to_so_many_and_off_above(spec, tokens):
    length = lengths.create(spec)
    assert [length.budgets(running(count)) for count in (1, 3)] == [[tokens], [tokens] * 3]
    assert length.budgets(running(4)) == [0] * 4


def test_for_new_requests_what_was_decided_at_their_first_step_holds():
    length, old, new = lengths.create("queue:2:new:4"), [Stats(5), Stats(5)], Stats(5)
    assert length.budgets(Load(old)) == [4, 4]
    assert length.budgets(Load([*old, new])) == [4, 4, 0]
    assert length.budgets(Load([new])) == [0]
    assert length.budgets(Load([new, Stats(5)])) == [0, 4]


@pytest.mark.parametrize("wrong", ["queue", "queue:", "queue:-1", "queue:3:some", "queue:3:all:0", "queue:3:all:x"])
def test_what_cannot_be_read_is_told(wrong):
    with pytest.raises(UserError, match="for example queue:8:all:5") as caught:
        lengths.create(wrong)
    assert caught.value.key == "length"
