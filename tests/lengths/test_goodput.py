"""The goodput length against the best fixed length in hindsight, on a clock that is only counted."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from ianvs_specdec import lengths
from ianvs_specdec.errors import UserError
from ianvs_specdec.lengths.fixed import Fixed
from tests.support.few import few

from .simulation import GRID, Chain, Machine, Tree, interpolated, mix, request, run

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
    learned = run(lengths.create("goodput"), clock, drafts, requests, seed=7)
    best = sum(min(spent[kind] for spent in fixed.values()) for kind in learned)
    assert sum(learned.values()) <= 1.05 * best
    for kind, spent in learned.items():
        assert spent <= 1.03 * fixed[0][kind], kind


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
    assert goodput.budgets(Load([Stats(50, "a", 100)]))[0] > 4
    assert goodput.budgets(Load([Stats(50, "a", 1)]))[0] == 0
    with pytest.raises(UserError, match="goodput takes no argument"):
        lengths.create("goodput:3")
