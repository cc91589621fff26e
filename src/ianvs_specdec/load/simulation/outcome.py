"""Result of a simulation, as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ianvs_specdec.engine.costs import CostTable
from ianvs_specdec.load.simulation.plan import SimulationPlan
from ianvs_specdec.load.simulation.requests import SimulatedAnswer

FORMAT, VERSION = "specdec-simulation", 1
DIGITS = 7
"""Significant digits."""
PERCENTILES = (50, 90, 99)
TIMES = ("ttft", "tpot", "latency")


@dataclass(frozen=True)
class Span:
    """A time interval up to ``until``: emitted tokens, and means over the steps: decoding requests, waiting requests,
    and speculation length (None without requests)."""

    until: float
    tokens: int
    running: float
    waiting: float
    budget: float | None


def outcome(
    plan: SimulationPlan,
    costs: CostTable,
    finished: Sequence[SimulatedAnswer],
    counts: Mapping[str, int],
    busy_seconds: float,
    spans: Sequence[Span],
) -> dict[str, Any]:
    """The result of a simulation, of finished answers. Times are in seconds, including the network."""
    before, rows = 0.0, []
    for span in spans:
        seconds = span.until - before
        rows.append({
            "until": _rounded(span.until),
            "tokens_per_second": _rounded(span.tokens / seconds) if seconds > 0 else None,
            **{name: _rounded(getattr(span, name)) for name in ("running", "waiting", "budget")},
        })  # fmt: skip
        before = span.until
    tasks = sorted({answer.task for answer in finished})
    of_task = {task: [answer for answer in finished if answer.task == task] for task in tasks}
    return {
        "format": FORMAT,
        "version": VERSION,
        "profile": {"machine": costs.machine, "model": costs.model, "emulated": costs.emulated},
        "policy": plan.policy,
        "edges": plan.edges,
        "seconds": _rounded(plan.seconds),
        "seed": plan.seed,
        "arrivals": plan.arrivals,
        "rate": _rounded(plan.per_second),
        "network": _rounded(plan.network),
        "at_once": plan.at_once,
        "queue": plan.queue,
        "slo": {name: _rounded(limit) for name, limit in plan.slo.items()},
        "requests": dict(counts),
        "busy": _rounded(busy_seconds / plan.seconds),
        **_figures(finished, plan),
        "tasks": {task: _figures(answers, plan) for task, answers in of_task.items()} if len(tasks) > 1 else {},
        "over_time": [row for row in rows if row["tokens_per_second"] is not None],
    }


def _figures(answers: Sequence[SimulatedAnswer], plan: SimulationPlan) -> dict[str, Any]:
    times = {name: np.array([_time(name, answer) for answer in answers]) for name in TIMES}
    drafted, accepted, steps, tokens = (
        sum([getattr(answer, name) for answer in answers]) for name in ("drafted", "accepted", "steps", "tokens")
    )
    decoded = tokens - len(answers)  # without the first tokens, from the prompts
    met = np.ones(len(answers), dtype=bool)
    for name, limit in plan.slo.items():
        # NaN, of answers with one token, meets the objective.
        met &= ~(times[name] > limit)
    return {
        "requests_per_second": _rounded(len(answers) / plan.seconds),
        "tokens_per_second": _rounded(tokens / plan.seconds),
        **{name: _distribution(times[name]) for name in TIMES},
        "slo_goodput": _rounded(int(met.sum()) / plan.seconds) if plan.slo else None,
        "slo_attainment": _rounded(met.mean()) if plan.slo and len(answers) else None,
        "acceptance_rate": _rounded(accepted / drafted) if drafted else None,
        "tokens_per_step": _rounded(decoded / steps) if steps else None,
        "work_amplification": _rounded((drafted + steps) / decoded) if decoded else None,
    }


def _time(name: str, answer: SimulatedAnswer) -> float:
    if name == "tpot":
        return (answer.last - answer.first) / (answer.tokens - 1) if answer.tokens > 1 else float("nan")
    return (answer.first if name == "ttft" else answer.last) - answer.arrived + 2 * answer.delay


def _distribution(values: np.ndarray) -> dict[str, float | None]:
    known = values[~np.isnan(values)]
    if not known.size:
        return dict.fromkeys(("mean", *(f"p{percent}" for percent in PERCENTILES)))
    found = np.percentile(known, PERCENTILES)
    return {
        "mean": _rounded(float(known.mean())),
        **{f"p{percent}": _rounded(float(value)) for percent, value in zip(PERCENTILES, found, strict=True)},
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{DIGITS}g}")
