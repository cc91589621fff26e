"""The goodput length on servers that always read prompts, because answers are short or prompts long: simulated, against
the best fixed length in hindsight."""

from __future__ import annotations

from statistics import mean

import pytest

from ianvs_specdec import lengths
from ianvs_specdec.decoding import costs
from ianvs_specdec.decoding.costs import CostTable, Grid
from ianvs_specdec.simulation.users import UserPlan, simulate
from ianvs_specdec.simulation.workload import RecordedAnswer, Workload, stated
from tests.support.paths import EXAMPLE

GPU = EXAMPLE / "costs" / "h100-8b.json"
CPU = CostTable(
    step=Grid((1, 513), (0,), ((4e-4,), (0.055,))),
    prompt=Grid((1, 257), (0,), ((1e-4,), (0.028,))),
    draft=Grid((1, 64), (0, 10), ((7e-5, 4e-4), (3e-4, 0.01))),
    request=8e-5,
    prompt_rows=256,
)


def tokens_per_second(table, length, at_once, prompt, output, seconds):
    """Somebody always asks, from the cold start on; drafts of half of the requests are right more often."""
    survival = [(rate,) * 64 for rate in (0.8, 0.45)]
    asked = [
        RecordedAnswer(f"t{kind}", prompt * part // 2, output * part // 2, survival[kind])
        for kind in range(2)
        for part in (1, 2, 3)
    ]
    plan = UserPlan(length, at_once, seconds / 3600, rate=1e5 * at_once, arrivals="closed", at_once=at_once)
    return simulate(plan, table, lengths.create(length), Workload(asked))["tokens_per_second"]


@pytest.mark.parametrize(
    ("table", "load"),
    [("cpu", (60, 90, 30, 12)), ("cpu", (60, 400, 30, 12)), ("gpu", (64, 100, 60, 15)), ("gpu", (128, 800, 60, 40))],
    ids=["cpu", "cpu long prompts", "gpu", "gpu long prompts"],
)
def test_where_nearly_every_step_reads_prompts_it_comes_near_the_best_fixed_length(table, load):
    machine = CPU if table == "cpu" else costs.read(GPU)
    best = max(tokens_per_second(machine, f"fixed:{tokens}", *load) for tokens in (0, 1, 2, 4))
    assert tokens_per_second(machine, "goodput", *load) >= 0.94 * best


def test_where_more_short_requests_come_than_a_gpu_can_answer_it_comes_near_the_best_fixed_length():
    machine = costs.read(GPU)
    survival = [(rate,) * 64 for rate in (0.99, 0.96, 0.9)]
    asked = [
        RecordedAnswer(f"t{kind}", prompt, output, rates)
        for kind, rates in enumerate(survival)
        for prompt in (20, 40, 60)
        for output in (15, 38, 64)
    ]

    def throughput(length, seeds):
        plans = [UserPlan(length, 1, 10 / 3600, seed, 640.0, "poisson", at_once=64) for seed in range(seeds)]
        runs = [simulate(plan, machine, lengths.create(length), Workload(asked)) for plan in plans]
        return mean(run["tokens_per_second"] for run in runs)

    assert throughput("goodput", 4) >= 0.9 * max(throughput("fixed:2", 1), throughput("fixed:4", 1))


def saturated(length, acceptance, at_once, seconds=20):
    """Tokens per second of a GPU with as many requests at once, all the time, and the lengths that were chosen."""
    plan = UserPlan("", at_once, seconds / 3600, 1, 1e5, "closed", at_once=at_once)
    rule, chosen = lengths.create(length), list[set[int]]()
    choose = rule.budgets

    def budgets(load):
        found = choose(load)
        # What is left of an answer may be too little for any draft.
        chosen.append({budget for budget, stats in zip(found, load.running, strict=True) if stats.remaining > 1})
        return found

    rule.budgets = budgets
    told = simulate(plan, costs.read(GPU), rule, Workload(stated(acceptance, 32, 256)))
    return mean(row["tokens_per_second"] for row in told["over_time"]), chosen


@pytest.mark.parametrize(
    ("acceptance", "at_once"),
    [
        pytest.param({"all": 0.7}, 64, id="alike"),
        pytest.param({"a": 0.98, "b": 0.93, "c": 0.8}, 64, id="nearly alike", marks=pytest.mark.slow),
        pytest.param({"a": 0.95, "b": 0.5}, 160, id="not so alike", marks=pytest.mark.slow),
    ],
)
def test_requests_that_differ_little_all_draft_the_same_as_with_the_best_fixed_length(acceptance, at_once):
    """To tell them apart would bring less than the errors of what is known of each of them cost."""
    best = max(saturated(f"fixed:{tokens}", acceptance, at_once)[0] for tokens in (0, 1, 2, 3, 4))
    found, chosen = saturated("goodput", acceptance, at_once)
    assert found >= 0.97 * best
    assert mean(len(budgets) == 1 for budgets in chosen) > 0.5


@pytest.mark.slow
def test_easy_and_hard_requests_do_not_draft_the_same():
    best = max(saturated(f"fixed:{tokens}", {"easy": 0.95, "hard": 0.1}, 192, 40)[0] for tokens in (0, 1, 2))
    found, chosen = saturated("goodput", {"easy": 0.95, "hard": 0.1}, 192, 40)
    assert found >= 1.1 * best
    assert mean(len(budgets) > 1 for budgets in chosen) > 0.5
