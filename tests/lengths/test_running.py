"""What is kept of running requests: when they may begin to speculate, and how much they will still emit."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ianvs_specdec.decoding import Stats
from ianvs_specdec.lengths.evidence import Evidence
from ianvs_specdec.lengths.plans import Options, Steps
from ianvs_specdec.lengths.running import REST, Outputs, Running


def request():
    return Running(Evidence().request("a"), start=10)


def test_a_new_request_may_begin_at_once_and_then_once_in_so_many_steps():
    new, free = request(), []
    for step in range(2 * REST + 1):
        free += [] if new.resting else [step]
        new.settle(0)
    assert free == [0, REST, 2 * REST]


def test_a_trial_does_not_cost_the_moment_to_begin_and_may_go_on():
    new = request()
    new.experiment(0)
    assert not new.resting
    new.settle(0)
    assert new.resting
    new.experiment(2)
    assert not new.resting
    new.settle(0)
    new.settle(0)
    assert new.resting


def test_outputs_are_expected_to_end_as_those_before_them_did():
    outputs, stats = Outputs(), Stats(50, "a", 1000)
    assert outputs.left(stats) == 1000
    for tokens in (20, 40):
        outputs.add(tokens)
    assert outputs.left(stats) == 30
    assert outputs.left(Stats(50, "a", 7)) == 7


def test_what_was_missed_is_shared_out_over_the_steps_that_outputs_have():
    outputs, behind = Outputs(), Stats(50, "a", 1000)
    outputs.add(30)
    behind.behind = 52
    assert outputs.missed(behind, emitted=2.0) == (52 - 2) / (30 / 2)
    behind.behind = 2
    assert outputs.missed(behind, emitted=3.0) == 0.0


def test_a_row_goes_where_it_makes_its_request_faster_by_the_larger_share():
    """A second token for 0.6 more makes an easy request 1.6 times as fast, a third one for 0.36 more 1.2 times: a hard
    one whose first guess is right three times in ten gains as much by its first."""
    options = Options(*(np.array([1.0, 2.0]) for _ in range(3)), np.ones(2), 0.0)
    gains = np.array([[0.6, 0.96], [0.3, 0.39]])
    steps = Steps.lined_up(options, gains, np.ones(2), np.zeros(2))
    assert list(zip(steps.who.tolist(), steps.place.tolist(), strict=True))[:3] == [(0, 0), (1, 0), (0, 1)]
    assert steps.tokens[1, 2] == pytest.approx(2 * math.sqrt(1.6 * 1.3))


def test_who_began_and_stopped_of_late_is_told_from_who_rests_for_long():
    one = Running(None, 0)
    assert not one.stopped
    one.settle(2)
    one.settle(0)
    assert one.stopped
    for _ in range(REST):
        one.settle(0)
    assert not one.stopped


def test_a_place_of_a_line_is_a_budget_for_each_request():
    options = Options(*(np.array([1.0, 2.0, 4.0]) for _ in range(3)), np.ones(3), 0.0)
    gains = np.array([[0.9, 1.7, 3.0], [0.2, 0.3, 0.4]])
    steps = Steps.lined_up(options, gains, np.ones(2), np.zeros(2))
    assert steps.budgets((2, 0), options) == [0, 0]
    assert steps.budgets((0, 2), options) == [1, 0]
    assert steps.budgets((2, 2), options) == [2, 0]
    assert steps.budgets((2, len(steps.who)), options) == [4, 4]
