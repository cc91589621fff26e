"""``specdec simulate``: a speculation length under the load of many users, in simulated time."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

from ianvs_specdec import lengths
from ianvs_specdec.commands.output import check_out, written
from ianvs_specdec.common.errors import UserError, unknown
from ianvs_specdec.records.identity import write_atomically

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ianvs_specdec.engine.costs import CostTable
    from ianvs_specdec.engine.scheduling import Length
    from ianvs_specdec.load.patterns import Arrival
    from ianvs_specdec.load.simulation.workload import RecordedAnswer

ORACLE = "oracle"
ACCEPTANCE = "0.7"
PROMPT_TOKENS, MAX_TOKENS = 256, 128
"""Tokens of a request where nothing is recorded."""
MOST_EDGES, MOST_HOURS, MOST_RATE, MOST_TOKENS = 1_000_000, 10_000.0, 1e6, 1 << 20
SLO = ("ttft", "tpot", "latency")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--profile", required=True, type=Path, metavar="FILE", help="cost table, as `specdec profile` writes it")
    add("--policy", required=True, metavar="NAME", help="a speculation length, as in YAML, or oracle")
    add("--edges", type=int, default=1000, metavar="N", help="users (default 1000)")
    add("--hours", type=float, default=1.0, metavar="H", help="simulated time (default 1)")
    add("--out", required=True, type=Path, metavar="FILE", help="JSON to write")
    add("--rate", type=float, metavar="R", help="requests a second of all edges together (default: one a minute "
        "each, and of a trace its own)")  # fmt: skip
    add("--arrivals", default="poisson", metavar="KIND", help="poisson (default), bursty, constant, closed: each "
        "edge asks again after its answer; or a trace's file, in Azure's or Mooncake's form")  # fmt: skip
    add("--traces", type=Path, metavar="FILE", help="journal.sqlite, or what `specdec decode` wrote: its acceptance "
        "and its lengths are drawn from")  # fmt: skip
    add("--acceptance", metavar="P", help="how often a drafted token is right, where there are no traces, for all "
        f"(default {ACCEPTANCE}) or by task: chat=0.6,code=0.8")  # fmt: skip
    add("--prompt-tokens", type=int, metavar="N", help=f"of each request (default: as recorded, else {PROMPT_TOKENS})")
    add("--max-tokens", type=int, metavar="N", help=f"longest answer (default: as recorded, else {MAX_TOKENS})")
    add("--network", type=float, default=0.0, metavar="S", help="median of the edges' network delays, one way, seconds")
    add("--at-once", type=int, metavar="N", help="requests that share the steps (default: as the engine)")
    add("--queue", type=int, metavar="N", help="requests that may wait; more are refused (default: as specdec serve)")
    add("--slo", metavar="LIST", help="objectives in seconds, such as ttft=0.5,tpot=0.05,latency=5")
    add("--seed", type=int, default=0, metavar="N", help="the same seed gives the same file")


def run(options: argparse.Namespace) -> int:
    check_out(options.out)
    _check(options)
    slo = _numbers(options.slo, "--slo", "ttft=0.5,tpot=0.05") if options.slo else {}
    for name in slo:
        if name not in SLO:
            raise unknown("objective in --slo", name, SLO)
    if options.traces is not None and options.acceptance is not None:
        raise UserError("--acceptance stands for what --traces tell: give one of them")

    from ianvs_specdec.engine import costs as tables
    from ianvs_specdec.load.simulation.plan import MOST_AT_ONCE, PATTERNS, QUEUE, UserPlan
    from ianvs_specdec.load.simulation.users import simulate
    from ianvs_specdec.load.simulation.workload import Workload

    coming = [] if options.arrivals in PATTERNS else _trace(options, PATTERNS)
    costs = tables.read(options.profile)
    plan = UserPlan(
        policy=options.policy,
        edges=options.edges,
        hours=options.hours,
        seed=options.seed,
        rate=len(coming) / (3600 * options.hours) if coming else options.rate,
        coming=coming,
        arrivals=options.arrivals,
        network=options.network,
        at_once=MOST_AT_ONCE if options.at_once is None else options.at_once,
        queue=QUEUE if options.queue is None else options.queue,
        slo=slo,
    )
    length = _length(options.policy, costs)
    # Nobody knows how long an answer of a trace may have been: as long as the longest.
    most = options.max_tokens or max([arrival.output_tokens for arrival in coming], default=None)
    workload = Workload(_recorded(options), options.prompt_tokens, most)
    found = simulate(plan, costs, length, workload)
    with written(options.out):
        write_atomically(options.out, json.dumps(found, indent=1) + "\n")
    stated = " (a stated machine)" if costs.emulated else ""
    print(
        f"{plan.policy} on {costs.machine or 'the machine'}{stated}: {found['requests']['completed']} answers, "
        f"{found['tokens_per_second']:g} token/s, latency p50 {_shown(found, 'p50')}, p99 {_shown(found, 'p99')}"
    )
    return 0


def _shown(found: dict, percentile: str) -> str:
    value = found["latency"][percentile]
    return "-" if value is None else f"{value:.4g} s"


def _check(options: argparse.Namespace) -> None:
    def whole(name: str, least: int, most: int) -> None:
        value = getattr(options, name)
        if value is not None and not least <= value <= most:
            raise UserError(f"--{name.replace('_', '-')} must be from {least} to {most}, not {value}")

    whole("edges", 1, MOST_EDGES)
    whole("prompt_tokens", 1, MOST_TOKENS)
    whole("max_tokens", 1, MOST_TOKENS)
    whole("at_once", 1, 1 << 16)
    whole("queue", 0, MOST_EDGES)
    for name, most, zero in (("hours", MOST_HOURS, False), ("rate", MOST_RATE, False), ("network", 3600.0, True)):
        value = getattr(options, name)
        if value is not None and not ((value >= 0 if zero else value > 0) and value <= most):
            raise UserError(f"--{name} must be {'0 or more' if zero else 'more than 0'}, at most {most:g}, not {value}")


def _trace(options: argparse.Namespace, patterns: Sequence[str]) -> list[Arrival]:
    """The requests of the trace that ``--arrivals`` names, at its own rate or at ``--rate``."""
    from ianvs_specdec.load.patterns import scaled
    from ianvs_specdec.load.traces import read_trace

    path, seconds = Path(options.arrivals), 3600 * options.hours
    if not path.is_file():
        raise unknown("--arrivals", options.arrivals, (*patterns, "the file of a trace"))
    trace = read_trace(path)
    if options.rate is None:
        return [arrival for arrival in trace if arrival.seconds < seconds]
    if not (coming := scaled(trace, options.rate, seconds)):
        raise UserError(f"at {options.rate:g} requests a second none comes within {seconds:g} s: give more --hours")
    return coming


def _length(policy: str, costs: CostTable) -> Length:
    if policy == ORACLE:
        from ianvs_specdec.lengths.oracle import Oracle

        return Oracle(costs)
    return lengths.create(policy)


def _recorded(options: argparse.Namespace) -> list[RecordedAnswer]:
    from ianvs_specdec.load.simulation import workload

    if options.traces is not None:
        return workload.read(options.traces)
    given = options.acceptance or ACCEPTANCE
    acceptance = _numbers(given if "=" in given else f"={given}", "--acceptance", "0.7 or chat=0.6,code=0.8")
    for task, rate in acceptance.items():
        if rate > 1:
            raise UserError(f"--acceptance must be from 0 to 1, not {rate:g}{f' for {task}' if task else ''}")
    return workload.stated(acceptance, options.prompt_tokens or PROMPT_TOKENS, options.max_tokens or MAX_TOKENS)


def _numbers(text: str, option: str, example: str) -> dict[str, float]:
    """``a=1,b=2``, each 0 or more."""
    found: dict[str, float] = {}
    for item in text.split(","):
        name, equals, value = item.partition("=")
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not equals or not 0 <= number < math.inf or name in found:
            raise UserError(f"{option} {text.removeprefix('=')}: write it as {example}")
        found[name] = number
    return found
