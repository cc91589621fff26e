"""The goodput length against the best fixed length in hindsight, on a clock that is only counted."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from ianvs_specdec import lengths
from ianvs_specdec.errors import UserError
from ianvs_specdec.lengths.fixed import Fixed
from ianvs_specdec.lengths.goodput import AHEAD, HURRY, PLAN, PLANNING, SPENT, TRIAL
from ianvs_specdec.lengths.steps import Mix
from tests.support.few import few

from .simulation import GRID, Chain, Luck, Machine, Running, Tree, interpolated, mix, request, run, step

MACHINES = {
    "cpu": Machine(interpolated({1: 2.5, 8: 3.0, 16: 3.5, 60: 7.0}), call=0.1, level=0.25, drift=2e-4),
    "gpu": Machine(interpolated({1: 20.0, 60: 21.0, 200: 26.0}), call=0.2, level=1.0, drift=1e-5),
    "dear drafts": Machine(interpolated({1: 2.5, 8: 3.0, 16: 3.5, 60: 7.0}), call=0.3, level=1.0, drift=2e-4),
}
DRAFTERS = {"chain": (Chain(), 1.0), "tree": (Tree(), 1.0), "rarely finds something": (Chain(), 0.3)}
MIXES = {
    "half of four": {"useless": 0.0, "good": 0.9, "useless too": 0.0, "fair": 0.6},
    "half of two": {"useless": 0.0, "good": 0.9},
    "nothing works": {"a": 0.0, "b": 0.0, "c": 0.0, "nearly": 0.02},
}


# Fast: each drafter on each machine, and every mix three times or more.
FAST = {(m, d, [*MIXES][(i + j) % 3]) for i, m in enumerate(MACHINES) for j, d in enumerate(DRAFTERS)}
FAST |= {("dear drafts", "rarely finds something", "half of four")}


@pytest.mark.parametrize(
    ("machine", "drafter", "kinds"), few(itertools.product(MACHINES, DRAFTERS, MIXES), FAST.__contains__)
)
def test_within_five_percent_of_hindsight_and_never_three_percent_slower_than_nothing(machine, drafter, kinds):
    clock, (drafts, hits) = MACHINES[machine], DRAFTERS[drafter]
    requests = mix(MIXES[kinds], hits=hits, seed=1)
    quiet = replace(clock, noise=0.0, outliers=0.0)
    fixed = {tokens: run(Fixed(tokens), quiet, drafts, requests) for tokens in GRID}
    runs = [run(lengths.create("goodput"), clock, drafts, requests, seed=seed) for seed in (5, 6, 7)]
    learned = {kind: sum(spent[kind] for spent in runs) / len(runs) for kind in runs[0]}
    best = sum(min(spent[kind] for spent in fixed.values()) for kind in learned)
    assert sum(learned.values()) <= 1.05 * best
    for kind, spent in learned.items():
        assert spent <= 1.03 * fixed[0][kind], kind


MANY = {
    "cpu": Machine(interpolated({1: 2.5, 8: 5.5, 16: 9.0, 60: 30.0, 2000: 1000.0}), call=0.1, level=0.25, drift=1e-5),
    "gpu": Machine(interpolated({1: 20.0, 60: 21.0, 200: 26.0, 2000: 230.0}), call=0.2, level=1.0, drift=1e-6),
}


@pytest.mark.parametrize("machine", MANY)
def test_rows_go_to_the_requests_that_use_them(machine):
    """Of 16 requests at once, half can be guessed: no length that is the same for all comes near."""
    clock, requests = MANY[machine], mix(MIXES["half of two"], requests=60, seed=1)
    fixed = {tokens: sum(run(Fixed(tokens), clock, Chain(), requests, at_once=16).values()) for tokens in (0, 1, 2, 4)}
    asked = {"useless": 0, "good": 0}

    def watch(running, budgets, *_):
        for one, budget in zip(running, budgets, strict=True):
            asked[one.kind] += budget

    learned = sum(run(lengths.create("goodput"), clock, Chain(), requests, at_once=16, watch=watch).values())
    assert learned <= (1.08 if machine == "cpu" else 0.95) * min(fixed.values())
    if machine == "gpu":
        assert asked["good"] > 3 * asked["useless"]


@pytest.mark.parametrize(("right", "least", "most"), [((0.8, 0.8), 0.1, 0.5), ((0.95, 0.0), 0.9, 1.0)])
def test_most_plans_are_for_all_alike_where_all_are_alike(right, least, most, monkeypatch):
    """To tell requests apart takes about half of a plan's time."""
    apart, plans = [], []
    ragged, uniform = Mix.ragged, Mix.uniform
    monkeypatch.setattr(Mix, "ragged", lambda mix, options: apart.append(mix) or ragged(mix, options))
    monkeypatch.setattr(Mix, "uniform", lambda mix, options: plans.append(mix) or uniform(mix, options))
    requests = mix(dict(zip("ab", right, strict=True)), requests=120, seed=1)
    run(lengths.create("goodput"), MANY["gpu"], Chain(), requests, at_once=16)
    assert len(plans) > 20
    assert least <= len({id(one) for one in apart} & {id(one) for one in plans}) / len(plans) <= most


def test_easy_requests_are_not_hastened_at_the_cost_of_hard_ones():
    """Where each that ends makes room for the next, the easy ones are gone soon, and most of a step are hard ones:
    longer drafts for the few bring more tokens of a step, but all wait for them."""
    clock = Machine(interpolated({1: 7.0, 200: 7.2, 2000: 50.0}), call=0.02, level=0.5, drift=1e-6)
    requests = mix({"easy": 0.9, "hard": 0.1}, requests=128, seed=1)
    fixed = {tokens: sum(run(Fixed(tokens), clock, Chain(), requests, at_once=16).values()) for tokens in (1, 2, 3)}
    learned = sum(run(lengths.create("goodput"), clock, Chain(), requests, at_once=16).values())
    assert learned <= 1.03 * min(fixed.values())


@pytest.mark.parametrize("at_once", [1, 8])
def test_on_a_machine_that_is_shared_it_is_about_as_good_as_on_a_quiet_one(at_once):
    """Half of the time everything takes twice as long, whatever the sizes of the steps that are seen then."""
    clock = replace(MANY["cpu"], slow=2.0, noise=0.1)
    requests = mix({"a": 0.75, "b": 0.75}, requests=60, seed=1)
    fixed = {tokens: run(Fixed(tokens), MANY["cpu"], Chain(), requests, at_once=at_once) for tokens in (0, 1, 2, 4, 6)}
    spent = [
        sum(run(lengths.create("goodput"), clock, Chain(), requests, seed=seed, at_once=at_once).values())
        for seed in range(2)
    ]
    assert sum(spent) / len(spent) <= 1.06 * min(sum(kinds.values()) for kinds in fixed.values())


def test_at_the_boundary_a_request_changes_at_most_once_in_twenty_steps():
    """A machine on which a draft pays exactly as much as it costs."""
    clock = Machine(interpolated({1: 2.0, 2: 3.0, 60: 61.0}), noise=0.03)
    steps: dict[int, list[bool]] = {}

    def watch(running, budgets, *_):
        for one, budget in zip(running, budgets, strict=True):
            steps.setdefault(one.seed, []).append(budget > 0)

    requests = [request("a", 0.5, 50, 400, seed, True, 1.0) for seed in range(8)]
    run(lengths.create("goodput"), clock, Chain(), requests, at_once=4, watch=watch)
    assert all(sum(a != b for a, b in itertools.pairwise(own)) <= len(own) / 20 + 1 for own in steps.values())


BUSY = replace(MANY["gpu"], verify=lambda rows: 2 * MANY["gpu"].verify(rows), level=2.0)
CHANGES = {
    "what is asked turns good": ((MANY["gpu"], 0.0), (MANY["gpu"], 0.9)),
    "what is asked turns bad": ((MANY["gpu"], 0.9), (MANY["gpu"], 0.0)),
    "the machine gets busy": ((MANY["gpu"], 0.8), (BUSY, 0.8)),
    "the machine is left alone": ((BUSY, 0.8), (MANY["gpu"], 0.8)),
    "rows become dear": ((MANY["gpu"], 0.8), (MANY["cpu"], 0.8)),
    "rows become cheap": ((MANY["cpu"], 0.8), (MANY["gpu"], 0.8)),
}


@pytest.mark.parametrize("at_once", [1, pytest.param(8, marks=pytest.mark.slow)])
@pytest.mark.parametrize("change", CHANGES)
def test_fifty_steps_after_a_change_it_is_at_its_best_again(change, at_once):
    def tokens_per_second(length):
        """What its budgets lead to expect: luck is left out."""
        rng, numbers, tokens, spent = Luck(3), itertools.count(), 0.0, 0.0
        for regime in CHANGES[change]:
            machine, right = regime
            running: list[Running] = []
            for number in range(200):
                running = [one for one in running if one.done < one.asked.tokens]
                while len(running) < at_once:
                    running.append(Running(request("a", right, 100, 400, next(numbers), True, 1.0)))
                taken, budgets, _ = step(length, machine, Chain(), running, rng)
                if regime is CHANGES[change][1] and number >= 50:
                    spent += taken
                    tokens += sum(right**level for budget in budgets for level in range(budget + 1))
        return tokens / spent

    best = max(tokens_per_second(Fixed(tokens)) for tokens in (0, 2, 3, 4, 6, 8))
    assert tokens_per_second(lengths.create("goodput")) >= 0.95 * best


def test_plans_take_little_of_the_time_of_short_steps(monkeypatch):
    """A plan for steps of 2 ms is made less often than one for steps of 20 ms."""
    from ianvs_specdec.lengths.goodput import Goodput

    made, plan = [], Goodput._planned_for
    monkeypatch.setattr(Goodput, "_planned_for", lambda self, *args: made.append(self) or plan(self, *args))
    plans = []
    for machine in (MACHINES["gpu"], Machine(interpolated({1: 2.0, 60: 2.1, 200: 2.6}), call=0.02, level=0.1)):
        requests = [request("a", 0.6, 50, 400, seed, True, 1.0) for seed in range(6)]
        run(lengths.create("goodput"), machine, Chain(), requests)
        plans.append(len(made))
        made.clear()
    assert plans[1] < 0.6 * plans[0]


def test_a_plan_goes_on_when_the_number_of_requests_comes_back(monkeypatch):
    """Every three steps half of them leave, or as many come."""
    from ianvs_specdec.lengths.goodput import Goodput

    made, plan = [], Goodput._planned_for
    monkeypatch.setattr(Goodput, "_planned_for", lambda self, *args: made.append(args) or plan(self, *args))
    length, rng, steps = lengths.create("goodput"), Luck(1), 480
    running = [Running(request("a", 0.7, 50, 10_000, seed, True, 1.0)) for seed in range(8)]
    for number in range(steps):
        step(length, MANY["gpu"], Chain(), running[: 8 if number // 3 % 2 else 4], rng)
    assert {len(group) for _, group in made} == {4, 8}
    assert len(made) <= 2 * steps / PLAN


@pytest.mark.parametrize("at_once", [1, 8])
def test_what_is_slept_through_changes_no_decision(at_once):
    """Useless requests are among good ones, so that it sleeps and wakes."""

    class Awake(type(lengths.create("goodput"))):
        def _hold(self, running):
            pass

    def decisions(length):
        made = []
        requests = mix(MIXES["half of two"], requests=16, seed=1)
        run(length, MACHINES["cpu"], Chain(), requests, 5, at_once, lambda running, budgets, *_: made.append(budgets))
        return made

    assert decisions(lengths.create("goodput")) == decisions(Awake())


@pytest.mark.parametrize("planning", [0.0, 0.4 * PLANNING, 4 * PLANNING])
def test_planning_takes_little_of_a_small_models_time_however_much_changes(planning):
    """``planning``: what a plan takes; 0: nobody measures it."""

    class Counted(type(lengths.create("goodput"))):
        plans, seconds, planned = 0, 0.0, False

        def _planned_for(self, load, running):
            self.plans += 1
            self.planned = True
            return super()._planned_for(load, running)

        def learn(self, finished):
            self.seconds += finished.draft_seconds + finished.verify_seconds
            super().learn(replace(finished, choosing_seconds=planning if self.planned else planning / 10))
            self.planned = False

    restless = replace(MACHINES["cpu"], verify=interpolated({1: 0.5, 8: 0.6, 60: 1.4}), noise=0.4)
    length = Counted()
    # Plans that follow trials pay back in time.
    run(length, restless, Chain(), mix(MIXES["half of two"], requests=160, seed=1), 5)
    # Until it is known what a plan takes, there are a few more.
    more = 12 if planning else 0
    affordable = HURRY * SPENT * length.seconds / (planning or PLANNING)
    assert max(AHEAD, 0.8 * affordable) < length.plans <= AHEAD + affordable + more
    assert length._planning.price == pytest.approx(planning or PLANNING, rel=0.1)


def test_it_learns_anew_when_a_task_turns_good():
    clock, drafts = replace(MACHINES["cpu"], noise=0.0, outliers=0.0), Chain()
    goodput = lengths.create("goodput")
    run(goodput, clock, drafts, [request("a", 0.0, 50, 128, seed, True, 1.0) for seed in range(10)])
    good = [request("a", 0.9, 50, 128, seed, True, 1.0) for seed in range(10, 40)]
    plain = run(Fixed(0), clock, drafts, good)["a"]
    assert run(goodput, clock, drafts, good)["a"] < 0.5 * plain


def test_no_speculation_before_a_plain_step_was_timed_and_none_that_cannot_be_used():
    from ianvs_specdec.decoding import Load, Stats

    goodput = lengths.create("goodput")
    assert goodput.budgets(Load([Stats(10, "a", 100)]))[0] == 0
    run(goodput, MACHINES["gpu"], Chain(), [request("a", 0.95, 50, 128, seed, True, 1.0) for seed in range(4)])
    # A trial of something else may be under way.
    assert max(goodput.budgets(Load([Stats(50, "a", 100)]))[0] for _ in range(TRIAL + 1)) > 4
    assert goodput.budgets(Load([Stats(50, "a", 1)]))[0] == 0
    with pytest.raises(UserError, match="goodput takes no argument"):
        lengths.create("goodput:3")


def test_who_has_one_token_left_stands_for_others_of_its_kind():
    """It needs no draft any more. If it counted as one that never has a good draft, a few of these would make up most
    of the steps that there will be, and the others would draft less."""
    from ianvs_specdec.decoding import Load, Stats

    machine, easy = replace(MANY["gpu"], noise=0.0, outliers=0.0), mix({"a": 0.9}, requests=90)

    def drafted(ending):
        goodput = lengths.create("goodput")
        run(goodput, machine, Chain(), easy, at_once=30)
        # Twice as many have a plan of their own.
        load = Load([Stats(50, "a", 1 if index < ending else 100) for index in range(60)])
        return [goodput.budgets(load) for _ in range(PLAN)][-1]

    assert drafted(0)[0] > 0
    assert drafted(15) == [0] * 15 + drafted(0)[15:]


def test_while_all_draft_the_same_nothing_is_chosen_anew(monkeypatch):
    """What is learned of a request then changes nothing, and to choose takes time."""
    from ianvs_specdec.lengths.goodput import Goodput

    chosen, choose = [], Goodput._chosen
    monkeypatch.setattr(Goodput, "_chosen", lambda self, *one: chosen.append(self._plan.same) or choose(self, *one))
    budgets = []
    requests = [request("a", 0.8, 50, 600, seed, True, 1.0) for seed in range(4)]
    run(
        lengths.create("goodput"),
        MANY["gpu"],
        Chain(),
        requests,
        at_once=4,
        watch=lambda _, own, *__: budgets.append(own),
    )
    assert sum(len(set(own)) == 1 for own in budgets) > 0.8 * len(budgets)
    assert sum(chosen) < 0.5 * 4 * len(budgets)
