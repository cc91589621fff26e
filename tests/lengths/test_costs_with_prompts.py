"""What steps cost that read prompts as well, and what these steps tell of others."""

from __future__ import annotations

import random

import numpy as np
import pytest

from ianvs_specdec.decoding import Load, Stats
from ianvs_specdec.lengths.costs import StepCosts
from ianvs_specdec.lengths.plans import Options
from ianvs_specdec.lengths.prices import Prices
from ianvs_specdec.lengths.prompts import Prompts
from ianvs_specdec.lengths.steps import Mix
from ianvs_specdec.lengths.times import Times
from tests.lengths.test_costs import at, costs


def test_where_every_step_reads_prompts_what_rows_take_is_told_from_what_these_take():
    """As on a busy server with short answers. The first steps are taken for what they are not, nearly all prompt."""
    learned, rng = StepCosts(), random.Random(0)
    for _ in range(200):
        rows, prompts = rng.choice((8, 16, 24, 40)), rng.randrange(40, 250)
        learned.add(rows, (2.0 + 0.1 * rows + 0.1 * prompts) * rng.lognormvariate(0, 0.05), 0, 8, prompts)
    assert at(learned, 8, 16, 24, 40, requests=8) == pytest.approx([2.8, 3.6, 4.4, 6.0], rel=0.25)


@pytest.mark.parametrize("seed", range(3))
def test_what_reading_takes_at_all_is_told_from_what_tokens_of_prompts_take(seed):
    learned, rng = costs({8: 2.8, 16: 3.6, 40: 6.0}, noise=0.03, requests=8), random.Random(seed)
    for _ in range(300):
        rows, prompts = rng.choice((8, 16, 24, 40)), rng.choice((0, rng.randrange(20, 250)))
        seconds = 2.0 + 0.1 * rows + (4.0 + 0.02 * prompts if prompts else 0.0)
        learned.add(rows, seconds * rng.lognormvariate(0, 0.05), 0, 8, prompts)
    assert learned.for_reading == pytest.approx(4.0, rel=0.25)
    assert at(learned, 8, 16, 40, requests=8) == pytest.approx([2.8, 3.6, 6.0], rel=0.1)


def test_what_reading_takes_at_all_is_in_the_price_of_steps_that_read():
    times, rng = Times(), random.Random(0)
    costs({8: 2.8, 16: 3.6, 40: 6.0}, learned=times.verify, requests=8)
    for _ in range(100):
        rows, prompts = rng.choice((8, 16, 40)), rng.choice((0, rng.randrange(20, 250)))
        times.verify.add(rows, 2.0 + 0.1 * rows + (4.0 + 0.02 * prompts if prompts else 0.0), 0, 8, prompts)
    options, gains = Options(*(np.array([1.0, 2.0]) for _ in range(3)), np.ones(2), 0.0), np.tile([0.8, 1.4], (8, 1))
    load, prices = Load([Stats(0)] * 8), Prices(times)

    def priced(often):
        steps = Mix(gains, np.ones(8), np.zeros(8), np.ones(8), Prompts(often=often)).uniform(options)
        token = prices.plan(options, gains[:1], steps, (0, 1), 0).token
        return prices.of(load, steps)[1][0], token

    (seconds, token), (without, token_without) = priced(1.0), priced(0.0)
    assert times.verify.for_reading > 2.0
    assert (seconds - without).tolist() == pytest.approx([times.verify.for_reading] * 3)
    assert token - token_without == pytest.approx(times.verify.for_reading / 8)


def test_prompts_of_which_a_few_tokens_are_free_leave_what_is_known_without_them():
    learned, rng = costs({8: 6.0, 16: 6.1, 32: 6.3}), random.Random(0)
    for _ in range(300):
        rows, prompts = rng.choice((8, 16, 32)), rng.choice((0, 0, 60, 400))
        seconds = 6.0 + 0.01 * (rows - 8) + max(prompts - 200, 0) * 0.025
        learned.add(rows, seconds * rng.lognormvariate(0, 0.03), 0, 8, prompts)
    assert at(learned, 8, 16, 32, requests=8) == pytest.approx([6.0, 6.1, 6.3], rel=0.05)


@pytest.mark.parametrize("seed", range(3))
def test_where_every_step_reads_prompts_of_which_some_are_free_it_is_known_how_rows_differ(seed):
    """What prompts take is not known well from such steps alone, and nor is what a step takes without any. That leaves
    no doubt of what more rows take."""
    learned, rng = StepCosts(), random.Random(seed)
    for _ in range(1000):
        rows, prompts = rng.choice((256, 320, 384, 448)), rng.randrange(100, 500)
        seconds = 0.025 * (rows + max(prompts - 221, 0))
        learned.add(rows, seconds * rng.lognormvariate(0, 0.03), 0, 64, prompts)
    few, many = at(learned, 256, 448, requests=64)
    assert many - few == pytest.approx(0.025 * (448 - 256), rel=0.2)


@pytest.mark.parametrize("seed", [0, 1, 2, 15])
def test_prompts_that_take_no_time_are_soon_known_to(seed):
    """At first half of a step is taken for its prompt. By that, a step with fewer tokens of prompts than others of its
    size takes hardly anything: if it counted by that and not by what it took, nothing else would count any more. With
    the last seed, sizes were left at nothing by it, and stayed there."""
    learned, rng = costs({120: 7.0, 200: 7.2}), random.Random(seed)
    for number in range(300):
        rows = rng.choice((64, 88, 120))
        prompts = 0 if rows == 120 and number % 2 else 32 * rng.choice((1, 1, 1, 2, 4, 12))
        learned.add(rows, 7.0 * rng.lognormvariate(0, 0.02), 0, 60, prompts)
    assert at(learned, 48, 64, 88, 120, requests=60) == pytest.approx([7.0] * 4, rel=0.05)


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_where_every_step_reads_prompts_they_tell_that_the_machine_changes_its_speed(factor):
    """Of sizes that are not seen meanwhile as well: what they take decides whether anybody asks for them again."""
    learned, rng = costs({8: 2.8, 16: 3.6, 40: 6.0}, noise=0.03, requests=8), random.Random(0)

    def steps(number, sizes, slower):
        for _ in range(number):
            rows, prompts = rng.choice(sizes), rng.randrange(40, 250)
            seconds = slower * (2.0 + 0.1 * rows + 0.02 * prompts) * rng.lognormvariate(0, 0.05)
            learned.add(rows, seconds, 0, 8, prompts)

    steps(200, (8, 16, 24, 40), 1.0)
    learned.changed = False
    steps(40, (24, 40), factor)
    assert learned.changed
    expected = [factor * one for one in (2.8, 3.6, 6.0)]
    assert at(learned, 8, 16, 40, requests=8) == pytest.approx(expected, rel=0.15)


def test_on_a_machine_that_keeps_its_speed_nothing_drifts_however_badly_prompts_fit():
    """Some tokens of a prompt are free, so the price of one fits no step; and late steps are only late."""
    learned, rng = costs({8: 2.8, 16: 3.6, 40: 6.0}, requests=8), random.Random(0)
    for _ in range(10_000):
        rows, prompts = rng.choice((16, 24, 32, 40)), rng.randrange(20, 500)
        seconds = (2.0 + 0.1 * rows + 0.02 * max(prompts - 200, 0)) * rng.lognormvariate(0, 0.05)
        learned.add(rows, 3 * seconds if rng.random() < 0.05 else seconds, 0, 8, prompts)
    assert learned.speed == pytest.approx(2.8, rel=0.5)


def test_a_first_step_of_a_size_that_took_much_longer_than_expected_may_have_been_late():
    """What it took is no reason not to try that size again."""
    learned = StepCosts()
    for _ in range(20):
        learned.add(40, 0.010, 1000, 40, 50)
        learned.add(60, 0.012, 1000, 40, 50)
    learned.add(160, 1.9 * 0.022, 1000, 40, 50)
    assert float(learned.at(np.array([160.0]), 1000, 40, hoped=True)[0]) < 0.8 * 0.022


@pytest.mark.parametrize("most", [0, 250])
def test_on_a_noisy_machine_noise_is_told_from_a_change_of_times(most):
    """What is unusual on a quiet machine happens here in one step of thirteen."""
    rng, learned, changes = random.Random(0), StepCosts(), 0

    def add(slower: float) -> bool:
        rows, prompts = rng.choice((60, 120, 240, 360)), rng.randrange(most + 1)
        seconds = slower * (2.0 + 0.05 * rows + 0.06 * prompts) * rng.lognormvariate(0, 0.17)
        learned.changed = False
        learned.add(rows, seconds, 0, 60, prompts)
        return learned.changed

    for number in range(1500):
        changes += add(1.0) and number >= 200
    assert changes <= 1300 / 40
    before = learned.speed
    for _ in range(12):
        add(2.0)
    assert learned.speed > 1.3 * before
