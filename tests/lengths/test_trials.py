"""What goodput may spend on finding out, and what it makes of that."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import numpy as np
import pytest

from ianvs_specdec import lengths
from ianvs_specdec.decoding import Finished, Load, Share, Stats
from ianvs_specdec.lengths.evidence import DIFFICULTIES
from ianvs_specdec.lengths.goodput import CLEAR, PLAN, TOO_SHORT, TRIAL
from ianvs_specdec.lengths.running import REST, SELDOM
from ianvs_specdec.lengths.savings import CHANGES, KEPT, START, Savings
from ianvs_specdec.types import Step

from .simulation import Chain, Luck, Machine, Running, interpolated, mix, request, run
from .simulation import step as simulated

DEAR = Machine(interpolated({1: 1.0, 8: 1.5, 60: 8.0, 2000: 250.0}), call=0.4, level=1.0)
"""A machine on which no draft pays, however often it is right."""
MACHINE = Machine(interpolated({1: 8.0, 16: 8.4, 60: 12.0, 2000: 300.0}), call=0.1, level=0.3)
SHORT = Machine(interpolated({1: 0.4, 8: 0.5, 60: 1.6, 2000: 50.0}), call=0.02, level=0.05, noise=0.2)
"""Steps so short that there is hardly time for plans."""


def drafts_on_a_dear_machine(first):
    """The share of the later steps with drafts, of requests with seeds from ``first`` on."""
    asked = [request("a", 0.95, 50, 400, seed, True, 1.0) for seed in range(first, first + 16)]
    drafts: list[bool] = []
    run(lengths.create("goodput"), DEAR, Chain(), asked, watch=lambda _, budgets, *__: drafts.append(budgets[0] > 0))
    later = drafts[len(drafts) // 2 :]
    return sum(later) / len(later)


def test_a_draft_that_was_accepted_and_took_longer_than_it_saved_is_not_paid_back():
    """If it were, a fiftieth of the steps would have drafts."""
    assert median(drafts_on_a_dear_machine(16 * number) for number in range(5)) <= 1 / 60


def test_after_every_trial_there_is_a_plan_however_short_the_time_for_plans():
    class Watched(type(lengths.create("goodput"))):
        made, trials = 0, ()

        def _planned_for(self, load, running):
            self.made += 1
            plan = super()._planned_for(load, running)
            self.trials += ((self._evidence.now, self.made),) * plan.trial
            return plan

        def budgets(self, load):
            budgets = super().budgets(load)
            for step, made in self.trials:
                # One with contradicting steps lasts twice as long.
                assert self.made > made or self._evidence.now < step + 2 * TRIAL
            return budgets

    length = Watched()
    run(length, SHORT, Chain(), mix({"a": 0.6, "b": 0.9}, requests=40, seed=1), at_once=4)
    assert len(length.trials) > 3


def test_who_has_one_token_left_takes_no_part_in_a_trial():
    """The step itself brings that token."""

    class Watched(type(lengths.create("goodput"))):
        ended, others = (), ()

        def _attempt(self, load, running, *case):
            plan = super()._attempt(load, running, *case)
            if plan:
                tried = [(stats.remaining, request.trial) for request, stats in zip(running, load.running, strict=True)]
                self.ended += tuple(budget for remaining, budget in tried if remaining < 2)
                self.others += tuple(budget for remaining, budget in tried if remaining > 1)
            return plan

    length, shared = Watched(), replace(MACHINE, slow=3.0)
    run(length, shared, Chain(), mix({"a": 0.3, "b": 0.4}, requests=2000, tokens=(2, 6)), at_once=32)
    assert len(length.ended) > 10
    assert not any(length.ended)
    assert sum(budget > 0 for budget in length.others) > len(length.others) / 2


def test_what_has_been_steady_for_long_is_tried_more_seldom_until_times_change():
    """Trials of every thousand steps; then all takes three times as long."""
    length, trials = lengths.create("goodput"), []
    tried = length._trial
    length._trial = lambda *args: trials.append(length._evidence.now) or tried(*args)
    running = [Running(request("a", 0.7, 50, 20_000, seed, True, 1.0)) for seed in range(4)]
    steady = replace(MACHINE, noise=0.0, outliers=0.0)
    rng = Luck(1)
    for machine, steps in ((steady, 4000), (replace(steady, verify=lambda rows: 3 * MACHINE.verify(rows)), 200)):
        for _ in range(steps):
            simulated(length, machine, Chain(), running, rng)
    first, *_, last = (sum(start <= step < start + 1000 for step in trials) for start in range(0, 4000, 1000))
    assert last <= 1000 / SELDOM + 1 < first
    assert sum(step >= 4000 for step in trials) > 200 / REST - 2


def learned_of_one(steps=40):
    """A length that has seen so many steps of one request in which nothing was accepted, and that request."""
    length, stats = lengths.create("goodput"), Stats(50, "a", 1000)
    for _ in range(steps):
        step(length, stats)
    return length, stats


def step(length, stats, seconds=0.01, prompt_rows=0):
    (budget,) = length.budgets(Load([stats]))
    done = Step(budget, 0, 1, budget + 1)
    share = Share(stats, budget, 0, budget, done, False)
    length.learn(Finished([share], budget + 1, prompt_rows, 50, 0.001 * budget, seconds))
    return budget


def test_a_trial_whose_steps_contradict_each_other_lasts_twice_as_long_at_the_most():
    for disputed, steps in ((False, TRIAL), (True, 2 * TRIAL)):
        length, stats = learned_of_one()
        length._catch_up()
        length._plan, lasted = length._trial([stats.kept], [3]), 0
        while length._plan.trial:
            length._verify.disputed = disputed
            (budget,) = length.budgets(Load([stats]))
            lasted += length._plan.trial and budget == 3
        assert lasted == steps


def test_asking_again_does_not_spend_what_a_trial_is_saved_up_for():
    length, stats = learned_of_one()
    stats.kept.since, stats.kept.budget = 100, 0
    price = length._prices.probe(length._options, Load([stats]), stats)
    savings = length._savings
    savings.fund, savings.for_probes, savings.saved_for = 1.5 * price, 0.0, price
    assert length._probe([stats.kept], Load([stats])) is None
    savings.for_probes = price
    assert length._probe([stats.kept], Load([stats])) == 0
    assert (savings.fund, savings.for_probes) == (pytest.approx(0.5 * price), 0.0)


def test_where_outputs_end_early_the_later_tokens_of_a_draft_count_for_less():
    length, stats = learned_of_one()
    before = length._gains()
    stats.context_tokens, stats.remaining = stats.kept.start + 10, 900
    share = Share(stats, 0, 0, 0, Step(0, 0, 1, 1), over=True)
    length.learn(Finished([share], 1, 0, 50, 0.0, 0.01))
    length._until_options = 0
    after = length._gains()
    assert after[:, 0] == pytest.approx(before[:, 0])
    assert (after[:, -1] < before[:, -1]).all()


def test_where_all_rest_and_nobody_drafts_what_a_draft_might_bring_is_tried():
    """Answers that are short begin, rest, and end: for their rest only a clear gain counts, and here there is none."""
    length = lengths.create("goodput")
    for number in (1, 2, 4, 8, 16, 32, 60):
        for _ in range(4):
            running = [Stats(50, "a", 1000) for _ in range(number)]
            length.budgets(Load(running))
            shares = [Share(one, 0, 0, 0, Step(0, 0, 1, 1), False) for one in running]
            length.learn(Finished(shares, number, 0, 50 * number, 0.0, 0.004 + 0.0001 * number))
    load, resting = Load(running), [length._known(stats) for stats in running]
    for one in resting:
        one.since, one.budget = REST + 10, 0
    length._savings.fund = 1.0
    steps = length._mix(load, resting, length._gains(), CLEAR).ragged(length._options)
    best = steps.fastest(np.add(*length._prices.of(load, steps, hoped=True)))
    assert not steps.asked[best]
    assert length._attempt(load, resting, steps, best).trial
    assert any(one.trial for one in resting)


def test_many_more_requests_than_ever_are_worth_trials_of_their_own():
    """What a server may lose on trials in its first, short steps is nothing beside one of many requests."""
    length, _ = learned_of_one()
    granted, numbers = [], []
    reach = length._savings.reach

    def reached(requests, seconds):
        before = length._savings.fund
        if many := reach(requests, seconds):
            granted.append(length._savings.fund - before)
            numbers.append(requests)
        return many

    length._savings.reach = reached
    for number in (40, 50, 40, 80):
        running = [Stats(50, "a", 1000) for _ in range(number)]
        for _ in range(2 * PLAN):
            budgets = length.budgets(Load(running))
            shares = [Share(one, x, 0, x, Step(x, 0, 1, x + 1), False) for one, x in zip(running, budgets, strict=True)]
            length.learn(Finished(shares, number + sum(budgets), 0, 50 * number, 0.0, 0.002 * number))
    assert numbers == [40, 80]
    assert granted[1] == pytest.approx(START * 0.16, rel=0.5)


def test_looking_at_times_that_seem_to_change_all_the_time_takes_little():
    savings, looks, plain = Savings(), 0, 0.02
    savings.reach(1, plain)
    for _ in range(10_000):
        savings.earn(0.05)
        looks += savings.look(TRIAL, plain)
    assert looks * (TRIAL + 1) * plain <= CHANGES * 10_000 * 0.05 + KEPT * plain
    assert looks * (TRIAL + 1) * plain > 0.9 * CHANGES * 10_000 * 0.05
    savings.earn(1e6)
    assert sum(savings.look(TRIAL, plain) for _ in range(10)) == KEPT // (TRIAL + 1), "a calm hour saves no more up"


@pytest.mark.parametrize(("remaining", "asked"), [(TOO_SHORT, None), (TOO_SHORT + 1, 0)])
def test_a_request_that_is_nearly_done_is_not_asked_again_for_what_that_teaches(remaining, asked):
    length, stats = learned_of_one()
    stats.kept.since, stats.kept.budget, stats.remaining = 100, 0, remaining
    length._savings.fund = length._savings.for_probes = 1.5 * length._prices.probe(
        length._options, Load([stats]), stats
    )
    assert length._probe([stats.kept], Load([stats])) == asked


def test_what_prompts_take_is_not_taken_for_what_others_take():
    length, stats = learned_of_one()
    sizes = np.array([1.0, 41.0])
    before = length._verify.at(sizes, 50, 1).tolist()
    stats.remaining = 1
    for _ in range(20):
        step(length, stats, seconds=0.5, prompt_rows=40)
    assert length._verify.at(sizes, 50, 1).tolist() == pytest.approx(before, rel=0.02)


def test_easy_requests_do_not_silence_a_harder_one_after_them():
    """One at a time: what easy ones make of a step is no price for another, which gains by drafts as well."""
    machine = Machine(interpolated({1: 1.0, 2: 1.25, 60: 5.0, 300: 25.0}), call=0.05, level=0.1)
    length = lengths.create("goodput")
    run(length, machine, Chain(), [request("a", 0.99, 50, 200, seed, True, 1.0) for seed in range(10)])
    half_right = int(np.argmin(np.abs(DIFFICULTIES)))
    budget, saved, _ = length._lasting.choices[half_right]
    assert budget > 0 < saved


def test_what_drafts_take_is_learned_in_steps_that_read_prompts_as_well():
    length, stats = lengths.create("goodput"), Stats(50, "a", 1000)
    for number in range(200):
        budget = length.budgets(Load([stats]))[0]
        share = Share(stats, budget, 0, budget, Step(budget, budget, budget + 1, budget + 1), False)
        length.learn(Finished([share], budget + 1, 40 * (number > 6), 50, 0.001 + 0.05 * budget, 0.01))
    assert budget == 0


def test_a_probe_that_took_longer_than_was_thought_is_paid_for_up_to_twice_its_price():
    def left(draft_seconds):
        """What is left for probes after one whose step took as long, of which so much was drafting; and its price."""
        length, stats = learned_of_one()
        length._catch_up()
        stats.kept.since, stats.kept.budget = 100, 0
        length._savings.fund = length._savings.for_probes = 1.0
        length._until_plan, length._until_probe = 9, 1
        (budget,) = length.budgets(Load([stats]))
        price = stats.kept.probed
        assert budget > 0
        assert price > 0
        share = Share(stats, budget, 0, budget, Step(budget, 0, 1, budget + 1), False)
        length.learn(Finished([share], budget + 1, 0, 50, draft_seconds, 0.02 - draft_seconds))
        return length._savings.for_probes, price

    (as_thought, price), (longer, _) = left(1e-6), left(0.019)
    assert as_thought - longer == pytest.approx(price)
