"""The goodput length against the best fixed length in hindsight, on a clock that is only counted."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from ianvs_specdec import lengths
from ianvs_specdec.engine import Load, Stats
from ianvs_specdec.lengths.fixed import Fixed
from ianvs_specdec.lengths.goodput import WARM_UP
from tests.support.slow_cases import slow_unless

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
FAST = {
    ("cpu", "chain", "half of four"),
    ("cpu", "tree", "half of two"),
    ("dear drafts", "rarely finds something", "half of two"),
    ("dear drafts", "chain", "nothing works"),
}


@pytest.mark.parametrize(
    ("machine", "drafter", "kinds"), slow_unless(itertools.product(MACHINES, DRAFTERS, MIXES), FAST.__contains__)
)
def test_near_hindsight_and_useless_drafts_cost_little(machine, drafter, kinds):
    clock, (drafts, hits) = MACHINES[machine], DRAFTERS[drafter]
    requests = mix(MIXES[kinds], hits=hits, seed=1)
    quiet = replace(clock, noise=0.0, outliers=0.0)
    fixed = {tokens: run(Fixed(tokens), quiet, drafts, requests) for tokens in GRID}
    runs = [run(lengths.create("goodput"), clock, drafts, requests, seed=seed) for seed in (5, 6, 7)]
    learned = {kind: sum(spent[kind] for spent in runs) / len(runs) for kind in runs[0]}
    # Each kind has its own best length here, which no length knows at the first of its requests.
    best = sum(min(spent[kind] for spent in fixed.values()) for kind in learned)
    more = 0.02 if drafter == "tree" else 0.0  # How much a tree of another size brings is known less well.
    assert sum(learned.values()) <= (1.06 + more) * best
    for kind, spent in learned.items():
        assert spent <= (1.05 if kinds == "nothing works" else 1.05 + more) * fixed[0][kind], kind


MANY = {
    "cpu": Machine(interpolated({1: 2.5, 8: 5.5, 16: 9.0, 60: 30.0, 2000: 1000.0}), call=0.1, level=0.25, drift=1e-5),
    "gpu": Machine(interpolated({1: 20.0, 60: 21.0, 200: 26.0, 2000: 230.0}), call=0.2, level=1.0, drift=1e-6),
}


@pytest.mark.parametrize(("machine", "least"), [("cpu", 0.93), ("gpu", 1.05)])
def test_rows_go_to_requests_that_use_them(machine, least):
    """Of 16 requests at once, half can be guessed."""
    clock, requests = MANY[machine], mix(MIXES["half of two"], requests=60, seed=1)
    fixed = [sum(run(Fixed(tokens), clock, Chain(), requests, at_once=16).values()) for tokens in (0, 1, 2, 4)]
    asked = {"useless": 0, "good": 0}

    def watch(running, budgets, *_):
        for one, budget in zip(running, budgets, strict=True):
            asked[one.kind] += budget

    learned = sum(run(lengths.create("goodput"), clock, Chain(), requests, at_once=16, watch=watch).values())
    assert min(fixed) / learned >= least
    assert asked["good"] > asked["useless"]


@pytest.mark.parametrize("at_once", [1, 8])
def test_a_shared_machine_does_not_mislead(at_once):
    """Half of the time everything takes twice as long, whatever the sizes of the steps that are seen then."""
    clock = replace(MANY["cpu"], slow=2.0, noise=0.1)
    requests = mix({"a": 0.75, "b": 0.75}, requests=60, seed=1)
    fixed = [run(Fixed(tokens), MANY["cpu"], Chain(), requests, at_once=at_once) for tokens in (0, 1, 2, 4, 6)]
    spent = [
        sum(run(lengths.create("goodput"), clock, Chain(), requests, seed=seed, at_once=at_once).values())
        for seed in range(2)
    ]
    assert min(sum(kinds.values()) for kinds in fixed) / (sum(spent) / len(spent)) >= 0.94


BUSY = replace(MANY["gpu"], verify=lambda rows: 2 * MANY["gpu"].verify(rows), level=2.0)
CHANGES = {
    "drafts turn good": ((MANY["gpu"], 0.0), (MANY["gpu"], 0.9)),
    "drafts turn bad": ((MANY["gpu"], 0.9), (MANY["gpu"], 0.0)),
    "the machine gets busy": ((MANY["gpu"], 0.8), (BUSY, 0.8)),
    "the machine is left alone": ((BUSY, 0.8), (MANY["gpu"], 0.8)),
    "rows become dear": ((MANY["gpu"], 0.8), (MANY["cpu"], 0.8)),
    "rows become cheap": ((MANY["cpu"], 0.8), (MANY["gpu"], 0.8)),
}


@pytest.mark.parametrize("at_once", [1, pytest.param(8, marks=pytest.mark.slow)])
@pytest.mark.parametrize("change", CHANGES)
def test_it_follows_a_change_within_150_steps(change, at_once):
    def tokens_per_second(length):
        """What its budgets lead to expect: luck is left out."""
        rng, numbers, tokens, spent = Luck(3), itertools.count(), 0.0, 0.0
        for place, (machine, right) in enumerate(CHANGES[change]):
            running: list[Running] = []
            for number in range(300):
                running = [one for one in running if one.done < one.asked.tokens]
                while len(running) < at_once:
                    running.append(Running(request("a", right, 100, 400, next(numbers), True, 1.0)))
                taken, budgets, _ = step(length, machine, Chain(), running, rng)
                if place == 1 and number >= 150:
                    spent += taken
                    tokens += sum(right**level for budget in budgets for level in range(budget + 1))
        return tokens / spent

    best = max(tokens_per_second(Fixed(tokens)) for tokens in (0, 2, 3, 4, 6, 8))
    assert tokens_per_second(lengths.create("goodput")) >= 0.95 * best


def test_it_begins_without_drafts_and_drafts_nothing_of_no_use():
    goodput = lengths.create("goodput")
    assert goodput.budgets(Load([Stats(10, "a", 100)])) == [0]
    run(goodput, MACHINES["gpu"], Chain(), [request("a", 0.95, 50, 128, seed, True, 1.0) for seed in range(4)])
    load = Load([Stats(50, "a", 100), Stats(50, "a", 1)])
    budgets = [goodput.budgets(load) for _ in range(len(WARM_UP))]
    assert max(long for long, _ in budgets) > 4
    assert {short for _, short in budgets} == {0}
