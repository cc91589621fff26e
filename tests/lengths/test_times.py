"""From which steps it is learned what they take, and what that itself may take."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ianvs_specdec import lengths
from ianvs_specdec.decoding import Finished, Share, Stats
from ianvs_specdec.lengths.lessons import FROM_EACH, LEARNED, LEARNING, TOGETHER
from ianvs_specdec.lengths.savings import Allowance
from ianvs_specdec.lengths.times import FIRST, HEARD, HEARING, Times
from ianvs_specdec.types import Step

from .simulation import Chain, Machine, interpolated, mix, run


def finished(seconds, rows=1, prompts=0):
    shares = [Share(Stats(100), 0, 0, 0, Step(rows - 1, 0, 1, rows))] if rows else []
    return Finished(shares, rows, prompts, 100, 0.1 * seconds, 0.9 * seconds)


def heard(times, steps, seconds, made=(), size=lambda number: 1, prompts=lambda number: 0):
    """The numbers of the steps that were learned from, of which some were ``made`` for that."""
    found, rows = [], []
    add = times.verify.add

    def told(*step):
        rows.append(step[0])
        add(*step)

    times.verify.add = told
    for number in range(steps):
        step = finished(seconds, size(number), prompts(number))
        times.earn(seconds)
        if not step.rows:
            times.read()
            continue
        before = len(rows)
        learned = times.hears(step, number in made)
        found += [number - 1] * (len(rows) - before)
        if learned:
            times.learn(step, [], True)
            found.append(number)
    return found


@pytest.mark.parametrize("seconds", [1e-4, 1e-3])
def test_of_short_steps_some_are_learned_from_for_a_share_of_the_time(seconds):
    times = Times()
    found = heard(times, 5000, seconds)
    assert found[: FIRST - 1] == [*range(FIRST - 1)]
    assert len(found) == pytest.approx(FIRST + 5000 * HEARD * seconds / HEARING, abs=2)
    # The last one might have been learned from yet.
    times.read()
    assert times.verify.samples == 5000
    assert times.verify.speed == pytest.approx(0.9 * seconds, rel=0.05)


def test_all_long_steps_are_learned_from():
    assert len(heard(Times(), 2000, HEARING / HEARD)) == 2000


def test_a_step_that_was_made_to_learn_from_it_is_and_so_is_the_one_after_it():
    made = (2000, 3000, 3001, 4000)
    found = {*heard(Times(), 5000, 1e-8, made)}
    assert found >= {2000, 2001, 3000, 3001, 3002, 4000, 4001}
    assert not found & {1999, 2002, 2999, 3003, 3999, 4002}


def test_short_steps_are_learned_from_beside_one_of_another_size():
    """Sizes change every seven steps: what is learned from later on are the two steps at such a change."""
    found = {*heard(Times(), 5000, 1e-3, size=lambda number: 1 + 4 * (number // 7 % 2))}
    later = [number for number in found if number > 1000]
    pairs = [number for number in later if number % 7 == 0 and number - 1 in found]
    assert len(later) == pytest.approx(4000 * HEARD * 1e-3 / HEARING, abs=2)
    assert 2 * len(pairs) > 0.9 * len(later)


def test_a_step_after_prompts_is_not_learned_from_while_there_are_others():
    def prompts(number):
        return 20 if number % 10 == 5 else 0

    alone = heard(Times(), 2000, 0.02, size=lambda number: number % 10 > 0)
    assert {number % 10 for number in alone if number > 10} == {*range(2, 10)}
    mixed = heard(Times(), 2000, 0.02, prompts=prompts)
    assert {number % 10 for number in mixed if number > 10} == {*range(10)} - {6}
    # Where each of them follows prompts, one in a while is.
    followed = heard(Times(), 2000, 0.02, size=lambda number: number % 2)
    assert 10 < len(followed) < 100


def test_what_was_done_before_it_could_be_paid_is_paid_by_what_comes():
    allowance = Allowance(price=1.0, share=0.5, most=1)
    assert not allowance.pay()
    assert allowance.pay(anyway=True)
    allowance.earn(3.0)
    assert not allowance.pay()
    allowance.earn(3.0)
    assert allowance.pay()
    allowance.earn(1000.0)
    assert allowance.pay()
    assert not allowance.pay()


def test_no_more_is_owed_than_could_have_been_saved():
    allowance = Allowance(price=1.0, share=0.5, most=2)
    for _ in range(1000):
        allowance.pay(anyway=True)
    allowance.earn(6.0)
    assert allowance.pay()


def test_the_price_is_what_it_takes():
    allowance = Allowance(price=1.0, share=0.5, most=4)
    for _ in range(50):
        allowance.took(7.0)
    assert allowance.price == 1.0, "it was not paid"
    for _ in range(50):
        allowance.pay(anyway=True)
        allowance.took(3.0)
    assert allowance.price == pytest.approx(3.0, rel=0.02)
    allowance.pay(anyway=True)
    allowance.took(3000.0)
    assert allowance.price < 3.4, "an interruption is no price"
    allowance.earn(1000.0)
    assert allowance.affords(4)
    assert not allowance.affords(5)


def test_goodput_learns_from_all_steps_of_its_trials_however_short_they_are():
    class Watched(type(lengths.create("goodput"))):
        trials = ()

        def learn(self, finished):
            self.trials += (finished,) * self._plan.trial
            super().learn(finished)

    length, heard, steps = Watched(), [], []
    told = length._times.hears

    def hears(finished, made):
        steps.append(finished)
        heard.extend([finished] * (answer := told(finished, made)))
        return answer

    length._times.hears = hears
    short = Machine(interpolated({1: 0.4, 8: 0.5, 60: 1.6, 2000: 50.0}), call=0.02, level=0.05, noise=0.2)
    run(length, short, Chain(), mix({"a": 0.6, "b": 0.9}, requests=100, seed=1), at_once=4)
    assert len(length.trials) > 10
    assert {id(step) for step in length.trials} <= {id(step) for step in heard}
    assert len(heard) < 0.6 * len(steps)


def learning(seconds, same=None):
    """For each step of about so many seconds: whether it was made to learn from it, and the steps that were learned
    from when it was over. ``same``: in all of them, all requests draft the same, or in none."""

    class Watched(type(lengths.create("goodput"))):
        steps = ()

        def budgets(self, load):
            budgets = super().budgets(load)
            if same is not None:
                self._plan = replace(self._plan, same=same)
            return budgets

        def learn(self, finished):
            made, known = self._plan.trial or self._probing, self._verify.warm
            self.steps += ((finished, made, known, learned := []),)
            self._learned = learned
            super().learn(finished)

        def _learn_from(self, finished, made, of_drafts):
            self._learned.append(finished)
            super()._learn_from(finished, made, of_drafts)

        def _planned_for(self, load, running):
            if same and self._until_plan <= 0:
                assert not self._lessons._steps, "a plan that was due knows all there is to know"
            return super()._planned_for(load, running)

    length, ms = Watched(), 1e3 * seconds
    machine = Machine(interpolated({1: ms, 8: 1.2 * ms, 60: 4 * ms}), call=0.05 * ms, level=0.1 * ms, noise=0.2)
    run(length, machine, Chain(), mix({"a": 0.6, "b": 0.9}, requests=60, seed=1), at_once=4)
    return length.steps


def test_of_short_steps_several_are_learned_from_at_once():
    steps = learning(2e-4)
    every = [id(finished) for finished, *_ in steps]
    learned = [id(finished) for *_, found in steps for finished in found]
    assert learned == every[: len(learned)], "all of them, and in their order"
    assert len(every) - len(learned) < TOGETHER
    for _, made, known, found in steps:
        assert found or (known and not made), "at once what was made for that, and while times are unknown"
    usual = [len(found) for _, made, known, found in steps if found and known and not made]
    assert sum(usual) / len(usual) > TOGETHER / 2
    assert max(usual) == TOGETHER, "and not what was long ago"


LONG = 2 * (LEARNING + 4 * FROM_EACH) / LEARNED


def test_of_steps_that_are_long_enough_each_is_learned_from_when_it_is_over():
    for finished, *_, found in learning(LONG, same=False):
        assert found == [finished]


def test_where_all_draft_the_same_it_is_learned_from_many_steps_at_once_but_before_the_next_plan():
    steps = learning(LONG, same=True)
    usual = [len(found) for _, made, known, found in steps if found and known and not made]
    assert sum(usual) / len(usual) > TOGETHER / 2
