"""The goodput length on simulated servers that always read prompts, relative to the best fixed length."""

from __future__ import annotations

from statistics import mean

import pytest

from ianvs_specdec import lengths
from ianvs_specdec.engine import costs
from ianvs_specdec.engine.costs import CostTable, Grid
from ianvs_specdec.load.plan import SimulationPlan
from ianvs_specdec.load.simulation.simulator import simulate
from ianvs_specdec.load.simulation.workload import RecordedAnswer, Workload, stated
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
    """A closed loop from a cold start; drafts of half of the requests are right more often."""
    survival = [(rate,) * 64 for rate in (0.8, 0.45)]
    asked = [
        RecordedAnswer(f"t{kind}", prompt * part // 2, output * part // 2, survival[kind])
        for kind in range(2)
        for part in (1, 2, 3)
    ]
    plan = SimulationPlan(
        policy=length, edges=at_once, hours=seconds / 3600, rate=1e5 * at_once, arrivals="closed", at_once=at_once
    )
    return simulate(plan, table, lengths.create(length), Workload(asked))["tokens_per_second"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "load"),
    [("cpu", (60, 90, 30, 12)), ("cpu", (60, 400, 30, 12)), ("gpu", (64, 100, 60, 15)), ("gpu", (128, 800, 60, 40))],
    ids=["cpu", "cpu long prompts", "gpu", "gpu long prompts"],
)
def test_goodput_is_near_the_best_length_with_prompts(table, load):
    machine = CPU if table == "cpu" else costs.read(GPU)
    best = max(tokens_per_second(machine, f"fixed:{tokens}", *load) for tokens in (0, 1, 2, 4))
    assert tokens_per_second(machine, "goodput", *load) >= 0.95 * best


def saturated(length, acceptance, at_once):
    """Tokens per second of a saturated GPU."""
    plan = SimulationPlan(
        policy="", edges=at_once, hours=20 / 3600, seed=1, rate=1e5, arrivals="closed", at_once=at_once
    )
    told = simulate(plan, costs.read(GPU), lengths.create(length), Workload(stated(acceptance, 32, 256)))
    return mean(row["tokens_per_second"] for row in told["over_time"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("acceptance", "at_once", "least"),
    [({"all": 0.7}, 64, 0.95), ({"a": 0.98, "b": 0.93, "c": 0.8}, 64, 0.95), ({"easy": 0.95, "hard": 0.1}, 192, 1.1)],
    ids=["alike", "nearly alike", "easy and hard"],
)
def test_goodput_gains_on_a_full_gpu(acceptance, at_once, least):
    best = max(saturated(f"fixed:{tokens}", acceptance, at_once) for tokens in (0, 1, 2, 3, 4))
    assert saturated("goodput", acceptance, at_once) >= least * best
