"""TODO"""

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
"""Per name: two counters, whose increases are divided. They are defined as the leaderboard's columns are."""
DIGITS = 4


Told = tuple[float, Mapping[str, float]]
"""Seconds since the first request could come, and what the server counts."""


def told(rounds: Sequence[Round], warmup: float, duration: float) -> dict[str, Any]:
    """``RATIOS`` and the mean and greatest ``queue`` and ``sequences`` between the end of the warm-up and the end of
    the arrivals, of all rounds together; None for other servers than ours."""
    windows = [[now for now in _known(one) if warmup <= now[0] <= duration] for one in rounds]
    windows = [inside for inside in windows if len(inside) > 1]
    if not windows:
        return dict.fromkeys((*RATIOS, "queue", "sequences"))
    found: dict[str, Any] = {name: _ratio(name, [(one[0], one[-1]) for one in windows]) for name in RATIOS}
    for name, read in (("queue", _queue), ("sequences", lambda server: server.get("sequences", 0.0))):
        values = [read(server) for inside in windows for _, server in inside]
        found[name] = {"mean": round(sum(values) / len(values), DIGITS), "max": max(values)}
    return found


def _known(round_: Round) -> list[Told]:
    begin = round_.begin + LEAD_IN
    return [
        (one.at - begin, one.server)
        for one in round_.samples
        if one.server and "engine_verifications_total" in one.server
    ]


def _ratio(name: str, spans: Sequence[tuple[Told, Told]]) -> float | None:
    above, below = (sum(after[1][one] - before[1][one] for before, after in spans) for one in RATIOS[name])
    return round(above / below, DIGITS) if below else None


def _queue(server: Mapping[str, float]) -> float:
    """Requests that wait, before the engine and in it."""
    return server.get("queue_length", 0.0) + server.get("waiting_for_room", 0.0)


QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
LATE = 0.1
"""Seconds: where the client sends one request in a hundred later than so, the load was not the one that was asked."""

COMPARED = frozenset({"output_tokens_per_second", "slo_goodput", "latency.mean"})
"""The figures of comparisons between policies."""

Statistic = Callable[[Floats], Floats]
"""From how often each request is drawn, [draws, requests], to a value for each draw; NaN = not defined."""


@dataclass(frozen=True)
class Columns:
    """Requests, each a row: float64 [requests], NaN where there is no such time. ``counted``: came after
    the warm-up; ``tokens``: of its output, those within the window; ``ended``: whether its end was there, too."""

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
    def of(cls, answered: Sequence[RequestRecord], plan: SweepPlan) -> Columns:
        opened, closed = LEAD_IN + plan.warmup, LEAD_IN + plan.duration

        def column(read: Callable[[RequestRecord], float | None]) -> Floats:
            return np.array([math.nan if (value := read(one)) is None else value for one in answered], dtype=np.float64)

        done = column(lambda one: one.status == COMPLETED)
        sent, first, last = column(lambda one: one.sent), column(lambda one: one.first), column(lambda one: one.last)
        end, output = column(lambda one: one.end), column(lambda one: one.output_tokens)
        counted = (column(lambda one: one.due) >= opened).astype(np.float64)
        later = np.where(output > 1, output - 1.0, np.nan)
        ttft, latency = first - sent, np.where(done > 0, end - sent, np.nan)
        tpot = (last - first) / later
        limits = {"ttft": ttft, "tpot": tpot, "latency": latency}
        missed = np.zeros(len(answered), dtype=bool)
        for name, limit in plan.slo.items():
            missed |= limits[name] > limit
        return cls(
            counted=counted,
            ttft=ttft,
            tpot=tpot,
            latency=latency,
            later_tokens=np.nan_to_num(later),
            tokens=_within(first, last, np.nan_to_num(output), opened, closed),
            ended=done * ((end >= opened) & (end < closed)),
            met=counted * done * ~missed,
            delay=sent - column(lambda one: one.due),
        )


def _within(first: Floats, last: Floats, tokens: Floats, opened: float, closed: float) -> Floats:
    """Tokens of each request in the window: the first at its arrival, the others evenly up to the last."""
    known = ~np.isnan(first) & (tokens > 0)
    begin, end = np.where(known, first, 0.0), np.where(known, np.fmax(last, first), 0.0)
    share = (np.clip(closed, begin, end) - np.clip(opened, begin, end)) / np.maximum(end - begin, 1e-9)
    arrived = (begin >= opened) & (begin < closed)
    return np.where(known, arrived + np.maximum(tokens - 1.0, 0.0) * np.where(end > begin, share, arrived), 0.0)


@dataclass(frozen=True)
class Measurement:
    """A policy's rounds at a rate, and by name the value of each statistic, in every draw, and of each round.
    Policies have the same requests, and so the same draws: what is computed of two of them is paired."""

    rounds: Sequence[Round]
    columns: Columns
    values: Mapping[str, float]
    drawn: Mapping[str, Floats]
    by_round: Mapping[str, Floats]

    @classmethod
    def of(cls, rounds: Sequence[Round], plan: SweepPlan) -> Measurement:
        columns = Columns.of([one for round_ in rounds for one in round_.answered], plan)
        statistics = _statistics(columns, len(rounds) * (plan.duration - plan.warmup), bool(plan.slo))
        round_of = np.repeat(np.arange(len(rounds)), [len(round_.answered) for round_ in rounds])
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
        """Which of the rounds there may be are there."""
        return [round_.place.repeat for round_ in self.rounds]

    def ratios(self, other: Measurement) -> dict[str, Any]:
        """To another policy with the same repeats at this rate, with intervals."""
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
    measured: Measurement, plan: SweepPlan, plain: Measurement | None, others: Mapping[str, Measurement]
) -> dict[str, Any]:
    """One object of ``sweep.json``. ``plain``: the policy whose outputs these should equal; ``others`` the other
    policies at the same rate. Those that do not have the same repeats yet are left out."""
    rounds, columns = measured.rounds, measured.columns
    answered = [one for round_ in rounds for one in round_.answered]
    counted = [one for one, count in zip(answered, columns.counted, strict=True) if count]
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
        "policy": rounds[0].place.policy,
        "rate": rounds[0].place.rate,
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
        **told(rounds, plan.warmup, plan.duration),
        "lossless": None if plain is None else _lossless(measured, plain),
        "notes": _notes(by_status, len(counted), figures, delay, plan),
    }


def _statistics(columns: Columns, window: float, slo: bool) -> dict[str, Statistic]:
    found: dict[str, Statistic] = {}
    weighed = {
        "ttft": (columns.ttft, columns.counted),
        "tpot": (columns.tpot, columns.counted),
        # guidellm reports the first and last token of a request, so its tokens have their mean pause.
        "itl": (columns.tpot, columns.counted * columns.later_tokens),
        "latency": (columns.latency, columns.counted),
    }
    for name, (values, weights) in weighed.items():
        for label, quantile in QUANTILES.items():
            found[f"{name}.{label}"] = _quantile(values, weights, quantile)
        found[f"{name}.mean"] = _mean(values, weights)
    rates = {"output_tokens_per_second": columns.tokens, "requests_per_second": columns.ended}
    for name, amounts in (rates | ({"slo_goodput": columns.met} if slo else {})).items():
        found[name] = lambda drawn, amounts=amounts: drawn @ amounts / window  # type: ignore[misc]
    return found


def _quantile(values: Floats, weights: Floats, quantile: float) -> Statistic:
    """The smallest value that has this part of the weight at or below it."""
    order = np.argsort(values)
    order = order[~np.isnan(values[order]) & (weights[order] > 0)]

    def statistic(drawn: Floats) -> Floats:
        if not len(order):
            return np.full(len(drawn), np.nan)
        below = np.cumsum(drawn[:, order] * weights[order], axis=1)
        wanted = quantile * below[:, -1:]
        # What is drawn never weighs nothing and stands where the sum passes what is wanted.
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
    """The value of a dotted name: ``ttft.p50`` is ``p50`` of the object ``ttft``."""
    outer, point, inner = name.partition(".")
    if point:
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
        opened, closed = (round_.begin + LEAD_IN + seconds for seconds in (plan.warmup, plan.duration))
        inside = [one.client for one in round_.samples if one.client is not None and opened <= one.at <= closed]
        if len(inside) > 1:
            spent.append(inside[-1] - inside[0])
    return round(sum(spent), 3) if spent else None


def _lossless(measured: Measurement, plain: Measurement) -> dict[str, Any]:
    """Number of outputs equal to plain decoding, of the requests that both completed."""
    outputs, expected = _outputs(measured), _outputs(plain)
    both = outputs.keys() & expected.keys()
    same = sum(outputs[request] == expected[request] for request in both)
    return {"compared": len(both), "same": same, "share": round(same / len(both), 6) if both else None}


def _outputs(measured: Measurement) -> dict[tuple[int, int], str]:
    """The texts of completed requests, by repeat and place in its arrivals."""
    return {
        (round_.place.repeat, one.index): one.text or ""
        for round_ in measured.rounds
        for one in round_.answered
        if one.status == COMPLETED
    }


def _notes(
    by_status: Mapping[str, int], requests: int, figures: Mapping[str, Any], delay: Floats, plan: SweepPlan
) -> list[str]:
    notes = []
    if requests == 0:
        notes.append("no request came after the warm-up")
    elif by_status[COMPLETED] == 0:
        notes.append("no request was completed")
    elif plan.slo and figures["slo_goodput"] == 0:
        notes.append("no request met the objectives")
    if by_status[REFUSED]:
        notes.append(f"the server refused {by_status[REFUSED]} of {requests} requests")
    if by_status[FAILED]:
        notes.append(f"{by_status[FAILED]} of {requests} requests failed")
    if by_status[UNREPORTED]:
        notes.append(f"guidellm reported nothing of {by_status[UNREPORTED]} of {requests} requests")
    if len(delay) and delay[int(0.99 * (len(delay) - 1))] > LATE:
        notes.append("the client sent late (client_delay_p99): it has too little processor for this load")
    return notes
