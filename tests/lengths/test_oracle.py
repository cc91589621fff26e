"""The oracle: no other budgets of a step have more true tokens per second, and nothing but a simulation has it."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from ianvs_specdec import lengths
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.engine.costs import Grid
from ianvs_specdec.engine.scheduling import Load, Stats
from ianvs_specdec.lengths.oracle import Oracle, Replayed
from tests.support.cost_tables import simple


def known(tokens):
    """A request of whose draft so many tokens would be accepted."""
    return Replayed(20, coming=lambda most: min(most, tokens))


def rate(costs, load, budgets):
    running = len(load.running)
    right = sum(stats.coming(budget) for budget, stats in zip(budgets, load.running, strict=True))
    rows = running + sum(budgets)
    context = sum(stats.context_tokens for stats in load.running)
    drafts = [budget for budget in budgets if budget]
    reading = load.prompt_rows, load.prompt_rows
    seconds = costs.step_seconds(rows, context, running, *reading) + costs.draft_seconds(drafts)
    return (running + right) / seconds


@pytest.mark.parametrize("seed", range(6))
def test_no_budgets_are_better_in_any_step(seed):
    chance = random.Random(seed)
    # Rows are free up to a knee; a level costs the same for any number of requests.
    step = Grid((1, 6, 12), (0, 100), ((0.01, 0.011), (0.0102, 0.0112), (0.02, 0.021)))
    costs = replace(simple(), step=step, draft=Grid((1, 3), (0, 4), ((0.0, 0.004), (0.0, 0.004))))
    for _ in range(15):
        running = [known(chance.randrange(5)) for _ in range(3)]
        load = Load(running, prompt_rows=chance.choice((0, 30)))
        chosen = Oracle(costs).budgets(load)
        best = max(rate(costs, load, budgets) for budgets in itertools.product(range(5), repeat=3))
        assert rate(costs, load, chosen) == pytest.approx(best)


def test_where_rows_are_dear_it_does_not_draft():
    dear = replace(simple(), step=Grid((1, 2), (0,), ((0.01,), (0.03,))))
    assert Oracle(dear).budgets(Load([known(5), known(9)])) == [0, 0]


def test_it_is_refused_wherever_the_future_is_not_known():
    with pytest.raises(UserError, match="only `specdec simulate` can tell it") as told:
        lengths.create("oracle")
    assert told.value.key == "length"
    with pytest.raises(UserError, match="only `specdec simulate` can tell it"):
        Oracle(simple()).budgets(Load([Stats(20)]))
