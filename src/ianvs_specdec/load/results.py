"""Results of all rounds of one policy at one rate: percentiles, throughput and server metrics. Times in seconds.

All requests after the warm-up are pooled. Throughput is between the end of the warm-up and the end of the arrivals.
Intervals are 95 %, bootstrap over requests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ianvs_specdec.load.arrivals import LEAD_IN
from ianvs_specdec.load.generator import COMPLETED, FAILED, REFUSED, UNREPORTED, RequestRecord
from ianvs_specdec.load.plan import SweepPlan
from ianvs_specdec.load.rounds import Round
from ianvs_specdec.routing.evaluation.bootstrap import Estimate, draws, estimate
from ianvs_specdec.routing.outcomes.recorded import Floats

RATIOS = {
    "acceptance_rate": ("engine_accepted_tokens_total", "engine_drafted_tokens_total"),
    "mean_accepted_tokens": ("engine_emitted_tokens_total", "engine_verifications_total"),
    "work_amplification": ("engine_verified_tokens_total", "engine_emitted_tokens_total"),
    "draft_length": ("engine_drafted_tokens_total", "engine_verifications_total"),
}
"""Ratios of the increases of two server counters, defined as the leaderboard's columns."""
DIGITS = 4
QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
MAX_CLIENT_DELAY = 0.1
"""Seconds: with a higher 99th percentile, the load generator did not keep to the schedule."""
COMPARED = frozenset({"output_tokens_per_second", "slo_goodput", "latency.mean"})
"""Statistics that are compared between policies."""

Sample = tuple[float, Mapping[str, float]]
"""Seconds since the first possible request, and the server's metrics."""
Statistic = Callable[[Floats], Floats]
"""From the number of times that each request is drawn, [draws, requests], to a value per draw; NaN = undefined."""


@dataclass(frozen=True)
class Columns:
    """Columns over requests, float64 [requests], NaN = unknown. ``counted``: after the warm-up; ``tokens``: those
    within the window; ``ended``: whether the end is within the window; ``met``: whether all objectives were met."""

    counted: Floats
    ttft: Floats
    tpot: Floats
    latency: Floats
    later_tokens: Floats
    tokens: Floats
    ended: Floats
    met: Floats
    delay: Floats

    @classmethod
    def of(cls, requests: Sequence[RequestRecord], plan: SweepPlan) -> Columns:
        start, stop = LEAD_IN + plan.warmup, LEAD_IN + plan.duration

        def column(read: Callable[[RequestRecord], float | None]) -> Floats:
            return np.array([math.nan if (value := read(one)) is None else value for one in requests], dtype=np.float64)

        done = column(lambda one: one.status == COMPLETED)
        sent, first, last = column(lambda one: one.sent), column(lambda one: one.first), column(lambda one: one.last)
        end, output = column(lambda one: one.end), column(lambda one: one.output_tokens)
        counted = (column(lambda one: one.due) >= start).astype(np.float64)
        later = np.where(output > 1, output - 1.0, np.nan)
        ttft, latency = first - sent, np.where(done > 0, end - sent, np.nan)
        tpot = (last - first) / later
        times = {"ttft": ttft, "tpot": tpot, "latency": latency}
        missed = np.zeros(len(requests), dtype=bool)
        for name, limit in plan.slo.items():
            missed |= times[name] > limit
        return cls(
            counted=counted,
            ttft=ttft,
            tpot=tpot,
            latency=latency,
            later_tokens=np.nan_to_num(later),
            tokens=_within(first, last, np.nan_to_num(output), start, stop),
            ended=done * ((end >= start) & (end < stop)),
            met=counted * done * ~missed,
            delay=sent - column(lambda one: one.due),
        )


def _within(first: Floats, last: Floats, tokens: Floats, start: float, stop: float) -> Floats:
    """Tokens of each request within the window, evenly spaced between the first and the last."""
    known = ~np.isnan(first) & (tokens > 0)
    begin, end = np.where(known, first, 0.0), np.where(known, np.fmax(last, first), 0.0)
    share = (np.clip(stop, begin, end) - np.clip(start, begin, end)) / np.maximum(end - begin, 1e-9)
    inside = (begin >= start) & (begin < stop)
    return np.where(known, inside + np.maximum(tokens - 1.0, 0.0) * np.where(end > begin, share, inside), 0.0)


@dataclass(frozen=True)
class Measurement:
    """Rounds of one policy at one rate, and each statistic: its value, in every draw, and per round.

    Policies have the same requests and draws, so their comparisons are paired.
    """

    rounds: Sequence[Round]
    columns: Columns
    values: Mapping[str, float]
    drawn: Mapping[str, Floats]
    by_round: Mapping[str, Floats]

    @classmethod
    def of(cls, rounds: Sequence[Round], plan: SweepPlan) -> Measurement:
        columns = Columns.of([one for round_ in rounds for one in round_.requests], plan)
        statistics = _statistics(columns, len(rounds) * (plan.duration - plan.warmup), bool(plan.slo))
        round_of = np.repeat(np.arange(len(rounds)), [len(round_.requests) for round_ in rounds])
        each = np.array([round_of == number for number in range(len(rounds))], dtype=np.float64)
        requests = len(round_of)
        blocks = [{name: one(block) for name, one in statistics.items()} for block in draws(requests, seed=plan.seed)]
        return cls(
            rounds,
            columns,
            {name: float(one(np.ones((1, requests)))[0]) for name, one in statistics.items()},
            {name: np.concatenate([block[name] for block in blocks]) for name in statistics},
            {name: one(each) for name, one in statistics.items()},
        )

    @property
    def repeats(self) -> list[int]:
        return [round_.key.repeat for round_ in self.rounds]

    def ratios(self, other: Measurement) -> dict[str, Any]:
        """Ratios to another policy with the same repeats at this rate, with intervals."""
        found: dict[str, Any] = {}
        for name in sorted(COMPARED & self.values.keys()):
            with np.errstate(divide="ignore", invalid="ignore"):
                value = np.divide(self.values[name], other.values[name])
                drawn = self.drawn[name] / other.drawn[name]
                by_round = self.by_round[name] / other.by_round[name]
            made = estimate(float(value), np.where(np.isfinite(drawn), drawn, np.nan))
            each = [_plain(float(one)) for one in by_round]
            found[name] = {"ratio": _plain(made.value), "interval": _ends(made), "by_repeat": each}
        return found


def result(
    measured: Measurement, plan: SweepPlan, reference: Measurement | None, others: Mapping[str, Measurement]
) -> dict[str, Any]:
    """One object of ``sweep.json``. ``reference``: the policy for ``lossless``; ``others``: policies at the same rate,
    compared once they have the same repeats."""
    rounds, columns = measured.rounds, measured.columns
    requests = [one for round_ in rounds for one in round_.requests]
    counted = [one for one, count in zip(requests, columns.counted, strict=True) if count]
    compared = {policy: one for policy, one in others.items() if one.repeats == measured.repeats}
    statuses = (COMPLETED, FAILED, REFUSED, UNREPORTED)
    by_status = {status: sum(one.status == status for one in counted) for status in statuses}
    figures: dict[str, Any] = {}
    intervals: dict[str, Any] = {}
    for name, value in measured.values.items():
        _put(figures, name, _plain(value))
        _put(intervals, name, _ends(estimate(value, measured.drawn[name])))
    delay = np.sort(columns.delay[(columns.counted > 0) & ~np.isnan(columns.delay)])
    return {
        "policy": rounds[0].key.policy,
        "rate": rounds[0].key.rate,
        "arrivals": plan.arrivals,
        "duration": plan.duration,
        "warmup": plan.warmup,
        "rounds": len(rounds),
        "requests": len(counted),
        **by_status,
        **{name: figures.get(name) for name in ("ttft", "tpot", "itl", "latency")},
        **{name: figures.get(name) for name in ("output_tokens_per_second", "requests_per_second", "slo_goodput")},
        "slo": dict(plan.slo) or None,
        "intervals": intervals,
        "ratios": {policy: measured.ratios(other) for policy, other in compared.items()} or None,
        "client_cpu_seconds": _client_seconds(rounds, plan),
        "client_cpu_seconds_total": round(sum(round_.client_seconds for round_ in rounds), 3),
        "client_delay_p99": _plain(float(delay[min(len(delay) - 1, int(0.99 * len(delay)))])) if len(delay) else None,
        **server_metrics(rounds, plan.warmup, plan.duration),
        "lossless": None if reference is None else _lossless(measured, reference),
        "notes": _notes(by_status, len(counted), figures, delay, plan),
    }


def server_metrics(rounds: Sequence[Round], warmup: float, duration: float) -> dict[str, Any]:
    """``RATIOS``, and mean and maximum of ``queue`` and ``sequences``, within the window; None for other servers."""
    windows = [[one for one in _samples(round_) if warmup <= one[0] <= duration] for round_ in rounds]
    windows = [samples for samples in windows if len(samples) > 1]
    if not windows:
        return dict.fromkeys((*RATIOS, "queue", "sequences"))
    spans = [(samples[0], samples[-1]) for samples in windows]
    found: dict[str, Any] = {name: _ratio(name, spans) for name in RATIOS}
    # Requests wait before the engine and in it.
    for name, gauges in (("queue", ("queue_length", "waiting_for_room")), ("sequences", ("sequences",))):
        values = [sum(server.get(one, 0.0) for one in gauges) for samples in windows for _, server in samples]
        found[name] = {"mean": round(sum(values) / len(values), DIGITS), "max": max(values)}
    return found


def _samples(round_: Round) -> list[Sample]:
    begin = round_.begin + LEAD_IN
    return [
        (one.at - begin, one.server)
        for one in round_.samples
        if one.server and "engine_verifications_total" in one.server
    ]


def _ratio(name: str, spans: Sequence[tuple[Sample, Sample]]) -> float | None:
    above, below = (sum(after[1][one] - before[1][one] for before, after in spans) for one in RATIOS[name])
    return round(above / below, DIGITS) if below else None


def _statistics(columns: Columns, window: float, slo: bool) -> dict[str, Statistic]:
    found: dict[str, Statistic] = {}
    weighted = {
        "ttft": (columns.ttft, columns.counted),
        "tpot": (columns.tpot, columns.counted),
        # guidellm reports only the first and the last token, so all tokens of a request have their mean pause.
        "itl": (columns.tpot, columns.counted * columns.later_tokens),
        "latency": (columns.latency, columns.counted),
    }
    for name, (values, weights) in weighted.items():
        for label, quantile in QUANTILES.items():
            found[f"{name}.{label}"] = _quantile(values, weights, quantile)
        found[f"{name}.mean"] = _mean(values, weights)
    rates = {"output_tokens_per_second": columns.tokens, "requests_per_second": columns.ended}
    for name, amounts in (rates | ({"slo_goodput": columns.met} if slo else {})).items():
        found[name] = lambda drawn, amounts=amounts: drawn @ amounts / window  # type: ignore[misc]
    return found


def _quantile(values: Floats, weights: Floats, quantile: float) -> Statistic:
    """The smallest value with at least this share of the weight at or below it."""
    order = np.argsort(values)
    order = order[~np.isnan(values[order]) & (weights[order] > 0)]

    def statistic(drawn: Floats) -> Floats:
        if not len(order):
            return np.full(len(drawn), np.nan)
        below = np.cumsum(drawn[:, order] * weights[order], axis=1)
        wanted = quantile * below[:, -1:]
        place = np.minimum((below < wanted).sum(axis=1), len(order) - 1)
        return np.where(below[:, -1] > 0, values[order][place], np.nan)

    return statistic


def _mean(values: Floats, weights: Floats) -> Statistic:
    known = np.where(np.isnan(values), 0.0, weights)
    amounts = np.nan_to_num(values) * known

    def statistic(drawn: Floats) -> Floats:
        total = drawn @ known
        return np.divide(drawn @ amounts, total, out=np.full(len(drawn), np.nan), where=total > 0)

    return statistic


def _put(tree: dict[str, Any], name: str, value: Any) -> None:
    """Set the value of a dotted name: ``ttft.p50`` is ``p50`` of the object ``ttft``."""
    outer, dot, inner = name.partition(".")
    if dot:
        tree.setdefault(outer, {})[inner] = value
    else:
        tree[outer] = value


def _ends(made: Estimate) -> list[float | None] | None:
    return [_plain(made.low), _plain(made.high)] if math.isfinite(made.low) else None


def _plain(value: float) -> float | None:
    return round(value, 6) if math.isfinite(value) else None


def _client_seconds(rounds: Sequence[Round], plan: SweepPlan) -> float | None:
    """Processor time of the load generator within the windows."""
    spent = []
    for round_ in rounds:
        start, stop = (round_.begin + LEAD_IN + seconds for seconds in (plan.warmup, plan.duration))
        inside = [one.client for one in round_.samples if one.client is not None and start <= one.at <= stop]
        if len(inside) > 1:
            spent.append(inside[-1] - inside[0])
    return round(sum(spent), 3) if spent else None


def _lossless(measured: Measurement, reference: Measurement) -> dict[str, Any]:
    """Number of outputs equal to the reference, among the requests that both completed."""
    outputs, expected = _outputs(measured), _outputs(reference)
    both = outputs.keys() & expected.keys()
    same = sum(outputs[request] == expected[request] for request in both)
    return {"compared": len(both), "same": same, "share": round(same / len(both), 6) if both else None}


def _outputs(measured: Measurement) -> dict[tuple[int, int], str]:
    """Texts of completed requests by repeat and index."""
    return {
        (round_.key.repeat, one.index): one.text or ""
        for round_ in measured.rounds
        for one in round_.requests
        if one.status == COMPLETED
    }


def _notes(
    by_status: Mapping[str, int], requests: int, figures: Mapping[str, Any], delay: Floats, plan: SweepPlan
) -> list[str]:
    notes = []
    if requests == 0:
        notes.append("no request after the warm-up")
    elif by_status[COMPLETED] == 0:
        notes.append("no request was completed")
    elif plan.slo and figures["slo_goodput"] == 0:
        notes.append("no request met the objectives")
    if by_status[REFUSED]:
        notes.append(f"the server refused {by_status[REFUSED]} of {requests} requests")
    if by_status[FAILED]:
        notes.append(f"{by_status[FAILED]} of {requests} requests failed")
    if by_status[UNREPORTED]:
        notes.append(f"guidellm did not report {by_status[UNREPORTED]} of {requests} requests")
    if len(delay) and delay[int(0.99 * (len(delay) - 1))] > MAX_CLIENT_DELAY:
        notes.append("requests were sent late (client_delay_p99): too little processor time for the load generator")
    return notes
