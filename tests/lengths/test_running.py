"""What is kept of running requests: when they may begin to speculate, and how much they will still emit."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ianvs_specdec.decoding import Load, Stats
from ianvs_specdec.lengths.evidence import Evidence
from ianvs_specdec.lengths.plans import Options
from ianvs_specdec.lengths.prompts import Prompts, Readers
from ianvs_specdec.lengths.running import REST, Outputs, Running, paces
from ianvs_specdec.lengths.steps import SELDOM, Apart, Mix


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
        outputs.add(tokens, early=True)
    assert outputs.left(stats) == 30
    assert outputs.left(Stats(50, "a", 7)) == 7


def test_what_was_missed_is_shared_out_over_the_steps_that_outputs_have():
    outputs, behind = Outputs(), Stats(50, "a", 1000)
    outputs.add(30, early=True)
    behind.unread_tokens = 52
    assert outputs.missed(behind, emitted=2.0) == (52 - 2) / (30 / 2)
    behind.unread_tokens = 2
    assert outputs.missed(behind, emitted=3.0) == 0.0


def test_only_outputs_that_end_early_say_that_others_may():
    outputs = Outputs()
    assert outputs.going_on == 1.0
    outputs.add(64, early=False)
    assert outputs.going_on == 1.0
    outputs.add(16, early=True)
    assert outputs.going_on == 1 - 0.5 / 40


def test_what_is_right_behind_the_end_of_an_output_is_no_gain():
    """A guess that is right nine times of ten, of outputs that end after ten tokens on average."""
    two = np.array([1.0, 2.0])
    options = Options(two, two, two, np.ones(2), 0.0)
    misses = np.full((1, 2), 0.1)
    np.testing.assert_allclose(options.gains(misses), [[0.9, 0.9 + 0.81]])
    np.testing.assert_allclose(options.gains(misses, going_on=0.9), [[0.9, 0.9 + 0.9 * 0.81]])


def test_rows_join_in_the_order_in_which_they_begin_to_pay():
    """Where a step takes f rows' time for each request, the easy one's first guess pays from f + 2 < 1.6 (f + 1), and
    its second from 1.6 (f + 3) < 1.96 (f + 2); the hard one's first from f + 2 < 1.3 (f + 1): f of 0.67, 2.44, 2.33."""
    options = Options(*(np.array([1.0, 2.0]) for _ in range(3)), np.ones(2), 0.0)
    gains = np.array([[0.6, 0.96], [0.3, 0.39]])
    steps = Mix(gains, np.ones(2), np.zeros(2), np.ones(2), Prompts()).ragged(options)
    assert list(zip(steps.who.tolist(), steps.place.tolist(), strict=True))[:3] == [(0, 0), (1, 0), (0, 1)]


@pytest.mark.parametrize("paces", [(1.0, 1.0), (4.0, 1.0)])
def test_a_step_is_of_the_mix_that_there_will_be(paces):
    """Four requests of which two have come to emit four tokens with drafts of three. Where as many easy ones as hard
    ones come, a server that is full soon has one easy one for four hard ones."""
    easy, hard = paces
    options = Options(*(np.array([3.0]) for _ in range(3)), np.ones(1), 0.0)
    number = 4 if easy == 1 else 5
    begun = np.array([1, 1, 0, 0] if easy == 1 else [1, 0, 0, 0, 0], dtype=float)
    gains, pace = 3.0 * begun[:, None], np.where(begun > 0, easy, hard)
    steps = Mix(gains, np.ones(number), np.zeros(number), pace, Prompts()).ragged(options)
    (none, one), (tokens_none, tokens) = steps.rows[0, [0, -1]] / number, steps.tokens[0, [0, -1]] / number
    assert (none, tokens_none) == (1.0, 1.0)
    assert one == pytest.approx(1 + 3 / 5)
    assert tokens == pytest.approx((4 * 1 + 1 * 4) / 5)


def test_where_prompts_decide_how_many_steps_there_are_a_step_has_no_more_tokens_and_fewer_requests():
    options = Options(*(np.array([1.0, 3.0]) for _ in range(3)), np.ones(2), 0.0)
    gains = np.tile([0.8, 2.0], (4, 1))
    mixes = [Mix(gains, np.ones(4), np.zeros(4), np.ones(4), Prompts(most=most)) for most in (9.0, 1.0)]
    free, bound = (mix.ragged(options) for mix in mixes)
    assert not free.bound.any()
    assert free.tokens[1, [0, -1]].tolist() == pytest.approx([4, 12])
    assert bound.bound[1].tolist() == [False] + [True] * 8
    assert bound.tokens[1].tolist() == pytest.approx([4] * 9)
    assert bound.requests[1, [0, -1]].tolist() == pytest.approx([4, 4 / 3])
    assert bound.rows[1, -1] == pytest.approx(4 / 3 * 4)


def test_who_reads_a_prompt_has_a_place_among_those_that_run():
    """Who is done twice as soon makes room for others, which read first: with one of five places for them, a step comes
    to have two thirds more tokens, not twice as many."""
    options = Options(*(np.array([1.0]) for _ in range(3)), np.ones(1), 0.0)
    steps = Mix(np.ones((4, 1)), np.ones(4), np.zeros(4), np.ones(4), Prompts(reading=1.0)).uniform(options)
    assert steps.tokens[0].tolist() == pytest.approx([4.0, 4 * 5 / 3])
    assert steps.requests[0].tolist() == pytest.approx([4.0, 4 / 2 * 5 / 3])


def test_steps_with_more_tokens_read_prompts_more_often():
    """Requests come at any time, and as many as are done: where half of the steps read prompts, of those with twice as
    many tokens three quarters do."""
    options = Options(*(np.array([1.0]) for _ in range(3)), np.ones(1), 0.0)
    loads = [Load([Stats(50)], prompt_rows=prompt_rows) for prompt_rows in (0, 33, 0, 70)]
    readers = Readers()
    for load in loads:
        readers.add(load)
    steps = Mix(np.ones((4, 1)), np.ones(4), np.zeros(4), np.ones(4), readers.known()).uniform(options)
    assert steps.reading[0].tolist() == pytest.approx([0.5, 0.75])


@pytest.mark.parametrize(("unread", "most"), [(0, math.inf), (3, 1), (None, 4 / 3)])
def test_the_less_of_what_a_step_can_read_is_read_the_more_tokens_steps_may_have(unread, most):
    """A step has room for 200 tokens of prompts; every second one needs no more than half of it."""
    readers = Readers()
    for number in range(600):
        left = 3 * (number % 2) if unread is None else unread
        readers.add(Load([], prompt_rows=200 if left else 100, unread=left, reading=2 + left))
    known = readers.known()
    assert known.most == pytest.approx(most)
    assert known.reading == {0: 2, 3: 5, None: 3.5}[unread]


def test_a_request_that_has_just_begun_is_as_fast_as_the_others_are():
    running = [Running(None, 10, begun=0), Running(None, 20, begun=5), Running(None, 30, begun=10)]
    assert paces(running, [Stats(10 + 40), Stats(20 + 5), Stats(30)], 10).tolist() == pytest.approx([43 / 11, 8 / 6, 3])
    assert paces(running[:1], [Stats(10)], 0).tolist() == [1.0]


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
    steps = Mix(gains, np.ones(2), np.zeros(2), np.ones(2), Prompts()).ragged(options)
    assert steps.budgets((2, 0), options) == [0, 0]
    assert steps.budgets((0, 2), options) == [1, 0]
    assert steps.budgets((2, 2), options) == [2, 0]
    assert steps.budgets((2, len(steps.who)), options) == [4, 4]


def test_where_all_draft_the_same_the_step_is_that_at_the_end_of_a_line():
    """Of two easy requests and a hard one, which may have no drafts and whose drafters are behind."""
    axis = np.array([1.0, 2.0, 4.0])
    options = Options(axis, axis, axis, np.ones(3), 0.5)
    found, behind, pace = np.array([0.8, 0.5, 0.7]), np.array([0.0, 3.0, 1.0]), np.array([2.0, 1.0, 2.0])
    gains = np.array([[0.9, 1.7, 3.0], [0.2, 0.3, 0.4], [0.9, 1.7, 3.0]])
    mix = Mix(gains, found, behind, pace, Prompts(reading=0.5, often=0.3, most=1.5))
    ragged, uniform = mix.ragged(options), mix.uniform(options)
    for name in ("requests", "rows", "asked", "nodes", "depth", "behind", "tokens", "bound", "reading"):
        of_all, lines = getattr(uniform, name)[0], getattr(ragged, name)
        np.testing.assert_allclose(of_all, [lines[0, 0], *lines[:, -1]], err_msg=name)
    for step in range(4):
        assert uniform.budgets((0, step), options) == ragged.budgets((max(step - 1, 0), 9 * (step > 0)), options)


def test_requests_are_told_apart_only_where_that_promises_more_for_several_plans():
    apart = Apart()
    assert [apart.pays(promise) for promise in (1.15, 1.0, 1.15, 1.0, 1.0)] == [False] * 5
    assert [apart.pays(promise) for promise in (1.15, 1.15, 1.15)] == [False, True, True]
    assert [apart.pays(promise) for promise in (1.0, 1.0)] == [False, False]
    assert [apart.pays(1.09) for _ in range(99)] == [False] * 99
    apart.pays(1000.0)
    assert not [apart.pays(1.0) for _ in range(9)][-1]


def test_while_that_promises_hardly_anything_it_is_looked_at_in_ever_fewer_plans():
    apart = Apart()

    def until_looked_at(promise):
        """Plans until the next that looks at it, which finds that promise."""
        plans = 1
        while apart.waits():
            plans += 1
        apart.pays(promise)
        return plans

    assert [until_looked_at(1.0) for _ in range(6)] == [1, 2, 3, 4, SELDOM, SELDOM]
    assert [until_looked_at(promise) for promise in (1.2, 1.2, 1.2)] == [SELDOM, 1, 1]
