"""``specdec simulate``: speculation policies under the load of many users, in simulated time."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ianvs_specdec import lengths
from ianvs_specdec.commands.arguments import check_out, writing
from ianvs_specdec.commands.hyperparameters import add_settings, read_hyperparameters, settings_of
from ianvs_specdec.common.errors import UserError, unknown
from ianvs_specdec.common.storage.atomic import write_atomically
from ianvs_specdec.load.arrivals import Arrival, scaled
from ianvs_specdec.load.plan import SIMULATED_PATTERNS, SimulationPlan

if TYPE_CHECKING:
    from ianvs_specdec.engine.costs import CostTable
    from ianvs_specdec.engine.length import Length
    from ianvs_specdec.load.simulation.workload import RecordedAnswer

ORACLE = "oracle"
ACCEPTANCE = {"": 0.7}
PROMPT_TOKENS, MAX_TOKENS = 256, 128
"""Tokens of a request if no trace is given."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--profile", required=True, type=Path, metavar="FILE", help="cost table, as `specdec profile` writes it")
    add("--out", required=True, type=Path, metavar="FILE", help="JSON to write")
    add("--policy", required=True, metavar="POLICY", help=SimulationPlan.model_fields["policy"].description)
    add_settings(parser, SimulationPlan, "coming", "policy")


def run(options: argparse.Namespace) -> int:
    check_out(options.out)
    given = read_hyperparameters(None, (), "", settings_of(options, SimulationPlan))
    plan = given.check(SimulationPlan.parse)
    if plan.traces is not None and plan.acceptance is not None:
        raise UserError("--acceptance and --traces exclude each other: give one")

    from ianvs_specdec.engine import costs as tables
    from ianvs_specdec.load.simulation.simulator import simulate
    from ianvs_specdec.load.simulation.workload import Workload

    coming = [] if plan.arrivals in SIMULATED_PATTERNS else _trace(plan)
    costs = tables.read(options.profile)
    length = _length(plan.policy, costs)
    # Traces have no max_tokens: the longest answer.
    most = plan.max_tokens or max([arrival.output_tokens for arrival in coming], default=None)
    workload = Workload(_recorded(plan), plan.prompt_tokens, most)
    rate = len(coming) / plan.seconds if coming else plan.rate
    found = simulate(plan.model_copy(update={"rate": rate, "coming": coming}), costs, length, workload)
    with writing(options.out):
        write_atomically(options.out, json.dumps(found, indent=1) + "\n")
    stated = " (a stated machine)" if costs.emulated else ""
    print(
        f"{plan.policy} on {costs.machine or 'the machine'}{stated}: {found['requests']['completed']} answers, "
        f"{found['tokens_per_second']:g} token/s, latency p50 {_latency(found, 'p50')}, p99 {_latency(found, 'p99')}"
    )
    return 0


def _latency(found: dict[str, Any], percentile: str) -> str:
    value = found["latency"][percentile]
    return "-" if value is None else f"{value:.4g} s"


def _trace(plan: SimulationPlan) -> list[Arrival]:
    """The requests of the trace file ``--arrivals``, at its own rate or at ``--rate``."""
    from ianvs_specdec.load.arrivals import read_trace

    path = Path(plan.arrivals)
    if not path.is_file():
        raise unknown("--arrivals", plan.arrivals, (*SIMULATED_PATTERNS, "the file of a trace"))
    trace = read_trace(path)
    if plan.rate is None:
        return [arrival for arrival in trace if arrival.seconds < plan.seconds]
    if not (coming := scaled(trace, plan.rate, plan.seconds)):
        raise UserError(f"at {plan.rate:g} requests a second none comes within {plan.seconds:g} s: give more --hours")
    return coming


def _length(policy: str, costs: CostTable) -> Length:
    if policy == ORACLE:
        from ianvs_specdec.lengths.oracle import Oracle

        return Oracle(costs)
    return lengths.create(policy)


def _recorded(plan: SimulationPlan) -> list[RecordedAnswer]:
    from ianvs_specdec.load.simulation import workload

    if plan.traces is not None:
        return workload.read(Path(plan.traces))
    tokens = plan.prompt_tokens or PROMPT_TOKENS, plan.max_tokens or MAX_TOKENS
    return workload.stated(plan.acceptance or ACCEPTANCE, *tokens)
