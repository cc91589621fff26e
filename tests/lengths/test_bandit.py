"""A bandit that learns a length for each batch size."""

from __future__ import annotations

import pytest

from ianvs_specdec import lengths
from ianvs_specdec.common.errors import UserError
from tests.support.loads import running, stepped


def chosen(length, steps, count, accepted, seconds):
    return [stepped(length, running(count), accepted, seconds)[0] for _ in range(steps)]


def share(budgets, budget):
    return budgets.count(budget) / len(budgets)


def test_it_finds_the_best_length_of_each_batch_size():
    """One request alone: three tokens are accepted, and drafts are cheap. Many: a drafted token costs a whole step."""
    length = lengths.create("bandit:5")
    chosen(length, 3000, 1, 3, lambda budget: 1 + 0.05 * budget)
    chosen(length, 3000, 16, 3, lambda budget: 1.0 + 2 * budget)
    assert share(chosen(length, 500, 1, 3, lambda budget: 1 + 0.05 * budget), 3) > 0.7
    assert share(chosen(length, 500, 16, 3, lambda budget: 1.0 + 2 * budget), 0) > 0.7


def test_it_follows_what_changes():
    length = lengths.create("bandit:4")
    chosen(length, 2000, 1, 4, 1.0)
    chosen(length, 4000, 1, 0, lambda budget: 1 + budget)
    assert share(chosen(length, 500, 1, 0, lambda budget: 1 + budget), 0) > 0.7


def test_the_same_seed_makes_the_same_choices():
    runs = [chosen(lengths.create(spec), 2000, 1, 2, 1.0) for spec in ("bandit:5:1", "bandit:5:1", "bandit:5:2")]
    assert runs[0] == runs[1] != runs[2]


@pytest.mark.parametrize("wrong", ["bandit:0", "bandit:x", "bandit:5:x", "bandit:-1"])
def test_what_cannot_be_read_is_told(wrong):
    with pytest.raises(UserError, match="for example bandit:5"):
        lengths.create(wrong)
