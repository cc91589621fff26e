"""The simulated server: times from the cost table, equal requests for all lengths, no lost requests."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ianvs_specdec import lengths
from ianvs_specdec.engine.costs import Grid
from ianvs_specdec.lengths.oracle import Oracle
from ianvs_specdec.load.plan import SIMULATED_PATTERNS, SimulationPlan
from ianvs_specdec.load.simulation.simulator import simulate
from ianvs_specdec.load.simulation.workload import RecordedAnswer, Workload, stated
from tests.support.cost_tables import LEVEL, PROMPT, PROMPT_ROW, ROW, STEP, TOKEN, simple

HALF = {"": 0.5}


def plan(policy="fixed:0", **changes):
    return SimulationPlan(**{"policy": policy, "edges": 5, "hours": 0.02, "rate": 1.0, **changes})


def result(policy="fixed:0", costs=None, workload=None, **changes):
    costs = costs or simple()
    length = Oracle(costs) if policy == "oracle" else lengths.create(policy)
    return simulate(plan(policy, **changes), costs, length, workload or Workload(stated(HALF, 100, 20)))


def test_times_match_the_cost_table():
    found = result(arrivals="constant", rate=0.5)
    far = result(arrivals="constant", rate=0.5, network=0.1, edges=1)
    added = far["ttft"]["p50"] - found["ttft"]["p50"]
    assert far["latency"]["p50"] - found["latency"]["p50"] == pytest.approx(added, rel=1e-4)
    assert added > 0.05, "the network is waited for twice"
    # A prompt of 100 is read in two pieces, of 64 and of 36 rows.
    ttft = 2 * PROMPT + 100 * PROMPT_ROW
    steps = sum(STEP + TOKEN * (101 + step) for step in range(19))
    assert found["ttft"]["p50"] == pytest.approx(ttft, rel=1e-6)
    assert found["latency"]["p99"] == pytest.approx(ttft + steps, rel=1e-6)
    assert found["tpot"]["mean"] == pytest.approx(steps / 19, rel=1e-6)
    assert found["requests"] == {"sent": 35, "completed": 35, "refused": 0, "in_flight": 0}
    assert found["tokens_per_step"] == found["work_amplification"] == 1.0


def test_accepted_drafts_save_steps():
    found = result("fixed:4", workload=Workload(stated({"": 1.0}, 10, 21)), arrivals="constant", rate=0.5)
    # Twenty tokens after the first, five in each step.
    steps = sum(STEP + 4 * ROW + TOKEN * (11 + 5 * step) + 4 * LEVEL for step in range(4))
    assert found["latency"]["p50"] == pytest.approx(PROMPT + 10 * PROMPT_ROW + steps, rel=1e-6)
    assert (found["acceptance_rate"], found["tokens_per_step"]) == (1.0, 5.0)


@pytest.mark.parametrize("arrivals", SIMULATED_PATTERNS)
def test_results_depend_on_seed(arrivals):
    first, again, other = (
        json.dumps(result("goodput", arrivals=arrivals, seed=seed, network=0.01, rate=2.0, hours=0.003))
        for seed in (1, 1, 2)
    )
    assert first == again
    assert arrivals == "constant" or first != other
    # Without speculation a drafter makes no difference.
    with_drafter = result(costs=simple(catch_up=0.1), arrivals=arrivals, hours=0.003)
    assert with_drafter == result(costs=simple(draft=False), arrivals=arrivals, hours=0.003)


def test_lengths_get_the_same_requests():
    sent = {policy: result(policy)["requests"]["sent"] for policy in ("fixed:0", "fixed:2", "goodput", "oracle")}
    assert len(set(sent.values())) == 1
    # A draft twice as long is right as far as the shorter one was: the steps can only become fewer.
    steps = [result(f"fixed:{tokens}", rate=0.2)["tokens_per_step"] for tokens in (1, 2, 4, 8)]
    assert steps == sorted(steps)


def test_oracle_beats_fixed_lengths():
    costs = replace(simple(), step=Grid((1, 32, 64), (0,), ((STEP,), (1.5 * STEP,), (6 * STEP,))))
    mix = Workload(stated({"easy": 0.9, "hard": 0.1}, 10, 30))
    rates = {
        policy: result(policy, costs, mix, rate=50.0, edges=50, hours=0.01)["tokens_per_second"]
        for policy in ("oracle", "fixed:0", "fixed:1", "fixed:3", "fixed:6")
    }
    assert max(rates, key=rates.__getitem__) == "oracle"


def test_queue_limit_and_request_counts():
    found = result(rate=40.0, queue=3, at_once=2, slo={"ttft": 0.1})
    counts = found["requests"]
    assert counts["sent"] == counts["completed"] + counts["refused"] + counts["in_flight"]
    assert counts["refused"] > 0
    assert counts["in_flight"] <= 5
    assert max(span["waiting"] for span in found["over_time"]) <= 3
    assert found["busy"] == pytest.approx(1.0, abs=0.01)
    assert 0 < found["slo_attainment"] < 1
    assert found["slo_goodput"] < found["requests_per_second"]


def test_drafter_catches_up():
    wrong = Workload(stated({"": 0.0}, 100, 20))
    free, dear = (
        result("fixed:2", simple(catch_up=seconds), wrong, arrivals="constant", rate=0.2) for seconds in (0.0, 0.001)
    )
    # The prompt and its first token, and then the one token that each of the 18 steps before the last put out.
    assert dear["latency"]["p50"] - free["latency"]["p50"] == pytest.approx(0.001 * (101 + 18), rel=1e-4)


def test_drafter_without_drafts():
    rarely = Workload([RecordedAnswer("", 10, 50, (1.0,) * 8, found=0.25)])
    found = result("fixed:4", workload=rarely, rate=0.5)
    assert found["acceptance_rate"] == pytest.approx(1.0)
    assert 1.5 < found["tokens_per_step"] < 2.5
