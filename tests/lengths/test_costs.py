"""What steps cost, learned from samples: between known sizes, beyond them, with more context, on a machine
that gets busy."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from ianvs_specdec.lengths.costs import SETTLED, StepCosts
from ianvs_specdec.lengths.drafting import DraftCosts


def costs(samples, rounds=30, context=0, learned=None, noise=0.0, requests=1):
    """``samples``: rows -> seconds of their steps, which take turns."""
    learned, rng = learned or StepCosts(), random.Random(0)
    for _ in range(rounds):
        for rows, seconds in samples.items():
            learned.add(rows, seconds * rng.lognormvariate(0, noise), context, requests)
    return learned


def at(learned, *rows, context=0, hoped=False, requests=1):
    return learned.at(np.array(rows, dtype=float), context, requests, hoped).tolist()


def test_between_two_sizes_it_is_the_line_through_them():
    learned = costs({2: 1.0, 4: 2.0})
    assert at(learned, 1, 2, 2.5, 3, 4) == pytest.approx([1.0, 1.0, 1.25, 1.5, 2.0], rel=0.02)


def test_beyond_the_largest_size_it_grows_as_over_the_last_doubling():
    assert at(costs({1: 1.0, 4: 2.5}), 7) == pytest.approx([4.0], rel=0.02)
    assert at(costs({1: 1.0, 8: 2.0, 16: 6.0}), 24) == pytest.approx([6.0 + 8 * 0.5], rel=0.05)
    assert at(costs({1: 1.0}), 11) == pytest.approx([1.0], rel=0.02)


def test_one_late_step_counts_for_little_and_a_second_one_for_all():
    learned = costs({1: 1.0, 4: 2.0})
    learned.add(1, 9.0, 0, 1)
    assert at(learned, 1, 4) == pytest.approx([1.0, 2.0], rel=0.15)
    assert not learned.changed
    learned.add(4, 18.0, 0, 1)
    learned.add(1, 9.0, 0, 1)
    learned.add(4, 18.0, 0, 1)
    assert at(learned, 1, 4) == pytest.approx([9.0, 18.0], rel=0.2)
    assert learned.changed


def test_a_new_slowdown_by_context_leaves_what_is_known_at_that_context():
    learned = costs({8: 0.006}, rounds=3, context=3000)
    costs({64: 0.007}, context=20_000, learned=learned)
    costs({8: 0.0068}, rounds=3, context=20_000, learned=learned)
    assert at(learned, 64, context=20_000) == pytest.approx([0.007], rel=0.1)


def test_two_steps_of_a_rare_size_that_contradict_each_other_are_taken_as_one():
    learned = costs({8: 2.0}, rounds=4)
    costs({64: 2.1}, learned=learned)
    for seconds, disputed in ((0.5, False), (20.0, True), (0.5, True), (0.5, False)):
        learned.add(8, seconds, 0, 1)
        assert learned.disputed == disputed
    assert at(learned, 8) == pytest.approx([0.5], rel=0.25)
    assert at(learned, 64)[0] > 1.5


def test_late_steps_among_others_change_nothing():
    learned, rng = StepCosts(), random.Random(0)
    for _ in range(400):
        rows = rng.choice([1, 8])
        learned.add(rows, (3.0 if rng.random() < 0.05 else 1.0) * (1.0 if rows == 1 else 2.0), 0, 1)
    assert at(learned, 1, 8) == pytest.approx([1.0, 2.0], rel=0.15)


def test_a_new_size_is_believed_little_at_first_and_then_more():
    learned = costs({1: 1.0, 4: 2.0, 8: 3.0})
    learned.add(6, 50.0, 0, 1)
    assert at(learned, 6)[0] < 3.0
    costs({1: 1.0, 6: 50.0}, rounds=12, learned=learned)
    assert at(learned, 6)[0] > 20.0


def test_more_tokens_never_cost_less():
    seconds = at(costs({1: 3.0, 2: 2.0, 3: 4.0}), 1, 2, 3)
    assert seconds == sorted(seconds)


def test_a_size_that_was_seldom_seen_is_about_on_the_line_through_its_neighbours():
    learned = costs({1: 1.0, 8: 2.0})
    learned.add(4, 2.4, 0, 1)
    learned.add(8, 2.0, 0, 1)
    assert 1.3 < at(learned, 4)[0] < 1.8


def test_on_a_quiet_machine_a_size_keeps_its_own_time_off_the_line():
    """Kernels take rows in blocks, so that one more row may take a fifth longer and the next one hardly more."""
    times = {5: 1.0, 6: 1.2, 7: 1.28, 9: 1.45}
    away = []
    for seed in range(8):
        learned, rng, speed = StepCosts(), random.Random(seed), 0.0
        for _ in range(400):
            speed += rng.gauss(0, 0.005)
            rows = rng.choice([*times])
            learned.add(rows, times[rows] * rng.lognormvariate(speed, 0.02), 100, 1)
        five, six, seven = at(learned, 5, 6, 7, context=100)
        away += [abs(math.log(six / five / 1.2)), abs(math.log(seven / six / (1.28 / 1.2)))]
    assert np.mean(away) < 0.02


def test_nothing_known_costs_nothing_and_samples_are_counted():
    learned = StepCosts()
    assert at(learned, 3, context=100) == [0.0]
    assert learned.samples == 0
    learned.add(1, 1.0, 0, 1)
    learned.add(5, 1.0, 0, 1)
    assert learned.samples == 2


def test_what_may_be_hoped_for_is_less_where_little_is_known_or_for_long():
    learned = costs({1: 1.0, 8: 2.0, 32: 4.0}, rounds=60)
    certain = at(learned, 8)[0] / at(learned, 8, hoped=True)[0]
    learned.add(16, 3.0, 0, 1)
    assert 1.0 < certain < 1.1 < at(learned, 16)[0] / at(learned, 16, hoped=True)[0]
    costs({1: 1.0, 32: 4.0}, rounds=1500, learned=learned)
    assert at(learned, 8)[0] / at(learned, 8, hoped=True)[0] > 1.3


def test_steps_slow_down_with_the_context_that_they_read():
    learned, rng = StepCosts(), random.Random(0)
    for _ in range(300):
        context = rng.randrange(2000)
        learned.add(1, 1.0 + 2e-4 * context, context, 1)
    assert [at(learned, 1, context=context)[0] for context in (0, 1500)] == pytest.approx([1.0, 1.3], rel=0.05)
    still = costs({1: 1.0}, context=500)
    assert at(still, 1, context=5000) == pytest.approx([1.0], rel=0.01)


def test_a_request_takes_longer_than_a_row_of_one_that_is_there_already():
    """A row takes 1, a request 3 beside it. The same rows were of one request each, and of few that drafted: what
    drafts of more requests take, which was never seen, follows."""

    def seconds(rows, requests):
        return 5.0 + rows + 3.0 * requests

    learned = StepCosts()
    for _ in range(60):
        for rows, requests in ((8, 8), (8, 2), (16, 4), (16, 16), (32, 8)):
            learned.add(rows, seconds(rows, requests), 0, requests)
    assert at(learned, 32, requests=16) == pytest.approx([seconds(32, 16)], rel=0.05)
    assert at(learned, 16, 32, requests=8) == pytest.approx([seconds(16, 8), seconds(32, 8)], rel=0.05)


def test_requests_take_no_more_than_the_smallest_step_with_as_many():
    """Rows and requests that go together cannot be told apart in large steps; a small one tells the most there may
    be."""
    learned = costs({8: 2.0}, requests=8)
    for _ in range(40):
        for rows, requests in ((60, 5), (61, 6), (62, 7), (63, 8)):
            learned.add(rows, 5.0 + 2.0 * requests, 0, requests)
    assert at(learned, 8, requests=8)[0] < 2.5


@pytest.mark.parametrize("alone", [range(40, 64), range(60, 61)])
def test_what_drafts_told_of_requests_is_kept_while_nobody_drafts(alone):
    """Steps without drafts have a row for each request: of these alone, nobody knows what a row of a draft takes."""

    def seconds(rows, requests):
        return 1.0 + 0.1 * rows + 0.3 * requests

    learned, rng = StepCosts(), random.Random(0)
    for _ in range(200):
        requests = rng.randrange(40, 64)
        rows = requests * rng.randrange(1, 5) + rng.randrange(20)
        learned.add(rows, seconds(rows, requests) * rng.lognormvariate(0, 0.03), 0, requests)
    assert at(learned, 180, requests=10, hoped=True)[0] > 0.85 * at(learned, 180, requests=10)[0]
    for _ in range(1000):
        requests = rng.choice(alone)
        learned.add(requests, seconds(requests, requests) * rng.lognormvariate(0, 0.03), 0, requests)
    assert at(learned, 60, 120, 180, requests=60) == pytest.approx([25.0, 31.0, 37.0], rel=0.1)
    assert at(learned, 120, requests=30) == pytest.approx([22.0], rel=0.15)


def test_nothing_hoped_for_is_above_what_is_expected():
    learned, rng = StepCosts(), random.Random(0)
    for _ in range(100):
        requests = rng.randrange(1, 30)
        learned.add(requests, (1.0 + 0.02 * requests**2) * rng.lognormvariate(0, 0.1), 80 * requests, requests)
        rows = np.arange(1.0, 300.0)
        for requests in (1, 30, 200):
            expected, hoped = (learned.at(rows, 100, requests, hoped) for hoped in (False, True))
            assert np.all((hoped > 0) & (hoped <= expected))


def test_beyond_the_largest_size_half_of_the_time_is_hoped_for_that_two_steps_take():
    largest, beyond = at(costs({1: 1.0, 8: 2.0, 16: 6.0}), 16, 24, hoped=True)
    assert beyond - largest == pytest.approx(0.5 * 8 * 6.0 / 16, rel=0.05)


def test_where_rows_and_requests_go_together_both_are_thought_to_take_time_and_rows_are_hoped_to_take_little():
    learned, rng = StepCosts(), random.Random(0)
    for _ in range(300):
        requests = rng.randrange(1, 64)
        learned.add(requests, (1.0 + 0.4 * requests) * rng.lognormvariate(0, 0.03), 0, requests)
    (plain, drafts), hoped = at(learned, 60, 120, requests=60), at(learned, 120, requests=60, hoped=True)[0]
    assert 1.4 * plain < drafts < 1.6 * plain
    assert hoped < plain + 0.5 * (drafts - plain)


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_when_the_machine_changes_its_speed_two_sizes_tell_the_others(factor):
    learned = costs({1: 1.0, 8: 2.0, 16: 3.0, 32: 5.0}, noise=0.03)
    costs({8: 2.0 * factor, 16: 3.0 * factor}, rounds=4, learned=learned)
    assert learned.changed
    assert at(learned, 1, 8, 16, 32) == pytest.approx([factor, 2 * factor, 3 * factor, 5 * factor], rel=0.2)


def test_on_a_machine_that_keeps_its_speed_late_steps_make_nothing_drift():
    learned, rng = costs({1: 1.0, 8: 2.0, 16: 3.0}), random.Random(0)
    for _ in range(10_000):
        rows = rng.choice((8, 16))
        seconds = (1.0 if rows == 8 else 1.5) * 2 * rng.lognormvariate(0, 0.1)
        learned.add(rows, 3 * seconds if rng.random() < 0.1 else seconds, 0, 1)
    assert learned.speed == pytest.approx(1.0, rel=0.5)


def test_when_one_size_alone_changes_the_others_stay():
    learned = costs({1: 1.0, 8: 2.0, 16: 3.0}, noise=0.03)
    costs({1: 1.0, 8: 2.0, 16: 6.0}, rounds=40, learned=learned)
    assert at(learned, 1, 8, 16) == pytest.approx([1.0, 2.0, 6.0], rel=0.15)


def test_first_steps_and_drafts_that_took_longer_than_those_after_are_forgotten():
    learned, drafts, terms = StepCosts(), DraftCosts(), (1, 1, 4, 4, 0)
    for seconds in (20.0, 5.0, 1.0, 1.0, 1.0):
        learned.add(4, seconds, 0, 1)
        drafts.add(*terms, seconds / 2)
    assert at(learned, 4) == pytest.approx([1.0], rel=0.05)
    assert float(drafts.at(*terms)) == pytest.approx(0.5, rel=0.2)


def test_on_a_noisy_machine_what_was_not_seen_for_long_is_still_about_known():
    """Its speed changes, some steps are late, and requests share most steps, but not all: that makes sizes noisy, too.
    All this is not to add up over thousands of steps."""
    away = []
    for seed in range(4):
        learned, rng, speed = StepCosts(), random.Random(seed), 1.0
        for number in range(6000):
            if rng.random() < 1 / 60:
                speed = rng.choice((1.0, 1.4))
            requests = 4 if number % 250 > 12 else rng.randint(1, 3)
            rows = requests * rng.choice((1, 2, 3, 5, 7, 11) if number < 200 else (3, 4, 5, 5, 7))
            seconds = speed * (0.25 + 0.03 * rows + 0.02 * requests) * rng.lognormvariate(0, 0.12)
            learned.add(rows, seconds * (rng.choice((2, 3, 6)) if rng.random() < 0.03 else 1), 100 * requests, requests)
            if number % 500 == 499:
                known = zip(at(learned, 4, 44, context=400), (4, 44), strict=True)
                away.append([abs(math.log(taken / speed / (0.33 + 0.03 * rows))) for taken, rows in known])
    few, many = np.mean(away, axis=0)
    assert few < 0.3
    assert many < 0.3


def test_a_late_first_step_of_a_size_leaves_hope():
    learned = costs({1: 1.0, 8: 2.0})
    learned.add(32, 40.0, 0, 1)
    assert at(learned, 32, hoped=True)[0] < 0.7 * at(learned, 32)[0]


def test_a_second_step_on_end_tells_of_its_size_what_the_first_one_began_to_tell():
    """A size that was not seen for long is tried for two steps, and the others still take as long as ever."""
    learned = costs({8: 2.0}, learned=costs({1: 1.0, 4: 1.5, 8: 2.0}))
    for seconds in (3.0, 3.0):
        learned.add(1, seconds, 0, 1)
    learned.add(8, 3.2, 0, 1)
    assert at(learned, 1, 8)[0] > 2.0


def test_no_size_takes_more_than_steps_that_have_all_its_rows():
    """What was seen of it long ago does not count where the machine takes much longer now."""
    learned = costs({4: 1.0, 20: 2.0, 40: 20.0})
    costs({20: 20.0}, rounds=300, learned=learned)
    few, many = at(learned, 4, 40)
    assert few > 0.95 * 20 / 5
    assert many < 1.05 * 20 * 2


def test_what_the_latest_size_takes_is_known_however_uncertain_all_sizes_are():
    learned = costs({1: 1.0, 4: 1.2, 16: 2.0, 32: 3.0})
    for seconds in (8.0, 0.4, 8.0, 0.4):
        learned.add(16, seconds, 0, 1)
        learned.add(32, 10 * seconds, 0, 1)
    costs({4: 6.0}, learned=learned)
    assert at(learned, 4) == pytest.approx([6.0], rel=0.1)


def test_no_step_takes_less_than_nothing_next_to_sizes_that_take_much_longer():
    learned = costs({1: 1.0, 2: 1.0, 3: 60.0, 4: 1.0}, rounds=2)
    assert min(at(learned, 1, 2, 3, 4, 5)) > 0.0


def test_steps_since_a_size_was_seen():
    learned = costs({1: 1.0, 8: 2.0})
    costs({8: 2.0}, rounds=5, learned=learned)
    assert (learned.age(8), learned.age(1), learned.age(64)) == (0, 6, learned.samples)


def test_what_is_known_is_worked_out_anew_when_a_step_told_of_something_or_after_a_while(monkeypatch):
    worked, settle = [], StepCosts._settle
    monkeypatch.setattr(StepCosts, "_settle", lambda self: worked.append(self.samples) or settle(self))
    learned = costs({2: 1.0, 4: 2.0})
    worked.clear()
    for _ in range(2 * SETTLED):
        costs({2: 1.0, 4: 2.0}, rounds=1, learned=learned)
        at(learned, 2, 4)
    assert len(worked) <= 4 + 1
    worked.clear()
    costs({2: 1.0, 4: 3.0}, rounds=2, learned=learned)
    at(learned, 2, 4)
    assert worked
