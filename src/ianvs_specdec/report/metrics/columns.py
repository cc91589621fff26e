"""The metrics, each a function of the table of results. Ratios are ratios of sums; undefined values are NaN.

``RATIOS`` (of two columns of queries) and ``MEANS`` (over queries) also have an interval and a column ``<metric>
Known``, the number of queries with a value. Those in ``CLAIMS`` are undefined unless every answer has a value.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.net.split.breakeven import break_even_round_trip
from ianvs_specdec.report.metrics.rows import HIDDEN_STATES, TEXT, TOKEN_IDS
from ianvs_specdec.report.metrics.table import NAN, Column, Table
from ianvs_specdec.workspace.sides import SIDES


def ratio(numerator: Column, denominator: Column) -> float:
    """Sum over sum, of the queries that have both values; NaN if the denominator is 0."""
    both = ~np.isnan(numerator + denominator)
    total = float(denominator[both].sum())
    return float(numerator[both].sum()) / total if total > 0 else NAN


def mean(column: Column) -> float:
    """Mean of the defined values; NaN if there are none."""
    defined = column[~np.isnan(column)]
    return float(defined.mean()) if len(defined) else NAN


def percentile(column: Column, percent: float) -> float:
    """Percentile of the defined values, interpolated linearly; NaN if there are none."""
    defined = column[~np.isnan(column)]
    return float(np.percentile(defined, percent)) if len(defined) else NAN


# Numerators and denominators by query


def per_turn(name: str) -> Callable[[Table], tuple[Column, Column]]:
    """A column summed over the turns, and the number of turns."""
    return lambda table: (table.query(name), table.by_query(np.ones_like(table.turn(name))))


def itl_sums(table: Table) -> tuple[Column, Column]:
    """Seconds from the first to the last chunk, and tokens after the first chunk."""
    seconds = table.by_query(table.turn("latency") - table.turn("ttft"))
    return seconds, table.query("tokens") - table.query("first_tokens")


def steps_of(name: str, per: str) -> Callable[[Table], tuple[Column, Column]]:
    """Two columns of verification steps, NaN if the back end did not report every step of the query: each token after
    the first comes from a step. Some back ends report the number of drafted tokens but no steps."""

    def sums(table: Table) -> tuple[Column, Column]:
        complete = table.turn("emitted") + 1 >= table.turn("tokens")
        if per == "drafted":
            complete |= (table.turn("steps") == 0) & (table.turn("drafted") > 0)
        known = ~np.isnan(table.by_query(np.where(complete, 0.0, NAN)))
        first, second = (np.where(known, table.query(column), NAN) for column in (name, per))
        return first, second

    return sums


def speedup_sums(table: Table) -> tuple[Column, Column]:
    """Seconds of the autoregressive baseline for the same number of tokens, and seconds taken. Turns after one that
    was not lossless are left out: their context differs from the baseline's."""
    excluded = _after_difference(table)
    baseline, seconds = (table.by_query(np.where(excluded, 0.0, table.turn(name))) for name in ("base_busy", "busy"))
    return baseline, seconds


def _after_difference(table: Table) -> NDArray[np.bool_]:
    """Per turn: whether an earlier turn of the same query differed from the baseline."""
    index = table.turn("query").astype(np.intp)
    differs = np.where(np.isnan(table.turn("base_tokens")), 0.0, table.turn("identical") == 0.0)
    before = np.cumsum(differs) - differs
    first_turn = np.searchsorted(index, index)
    return before - before[first_turn] > 0 if len(index) else np.zeros(0, dtype=bool)


def lossless_share(table: Table) -> Column:
    """100 if all turns equal the target's output without drafts, else 0; NaN if unknown."""
    return 100.0 * _until_difference(table, "identical", combine=np.minimum)


def near_tie_share(table: Table) -> Column:
    """100 if the first difference from the target's greedy output is at a near-tie, else 0; NaN if unknown."""
    return 100.0 * _until_difference(table, "near_tie", combine=np.maximum)


def _until_difference(table: Table, name: str, combine: np.ufunc) -> Column:
    counted = ~_after_difference(table)
    index, values = table.turn("query").astype(np.intp)[counted], table.turn(name)[counted]
    result = np.full(len(table), 1.0 if combine is np.minimum else 0.0)
    with np.errstate(invalid="ignore"):
        combine.at(result, index, values)
    result[np.setdiff1d(np.arange(len(table)), index)] = NAN
    return result


def energy_of(side: str, part: str, per: str) -> Callable[[Table], tuple[Column, Column]]:
    """Two columns of a side: energy (see ``rows.ENERGY``) or tokens."""
    return lambda table: (table.query(f"{side}_{part}"), table.query(f"{side}_{per}"))


def sent_as(form: float) -> Callable[[Table], Column]:
    """100 if the query leaves the edge in this form, else 0."""
    return lambda table: 100.0 * (table.query("sent") == form)


def slo_met(table: Table) -> Column:
    """1 if every turn meets the limits on ``ttft`` and ``itl`` and the query that on ``latency``, else 0; NaN without
    limits."""
    index = table.turn("query").astype(np.intp)
    ttft, latency = table.turn("ttft"), table.turn("latency")
    after = table.turn("tokens") - table.turn("first_tokens")
    itl = np.divide(latency - ttft, after, out=np.zeros_like(after), where=after > 0)
    missed = (ttft > table.query("slo_ttft")[index]) | (itl > table.query("slo_itl")[index]) | np.isnan(latency)
    late = table.query("latency") > table.query("slo_latency")
    met = np.where(late | (table.by_query(missed.astype(np.float64)) > 0), 0.0, 1.0)
    return np.where(np.isnan(table.query("slo_latency")), NAN, met)


def cut_prompts(table: Table) -> float:
    """Number of truncated prompts; NaN if none is known and a server does not report them."""
    known = float(table.query("truncated").sum())
    return NAN if not known and table.query("unreported").any() else known


def verifier_busy_sums(table: Table) -> tuple[Column, Column]:
    """The verifier's seconds, and tokens."""
    return table.by_query(table.turn("prefill") + table.turn("work")), table.query("tokens")


def break_even(table: Table) -> float:
    """Round trip in seconds at which split decoding is as fast as the autoregressive stream, by the formula of
    ``net.split.breakeven`` (docs/split.md) with sums over the answers; NaN for other answers."""
    tokens = table.turn("tokens") - table.turn("first_tokens")
    names = ("work", "drafting", "hidden", "waits", "rounds", "in_flight")
    columns = [tokens * table.turn("base_token"), *(table.turn(name) for name in names)]
    known = ~np.isnan(sum(columns))
    # Rounds sent ahead share a way among those in flight.
    columns.append((columns[5] - columns[4]) / columns[6])
    stream, work, drafting, hidden, waits, rounds, _, shares = (float(column[known].sum()) for column in columns)
    if not rounds:
        return NAN
    service = work / rounds
    hidden = max(hidden, service * (rounds - waits))
    return break_even_round_trip(stream, fresh=waits, shares=shares, drafting=drafting, service=service, hidden=hidden)


ENERGY = {
    "Energy per Token": ("joules", "completion"),
    "Mean Power": ("joules", "seconds"),
    "Idle Power": ("idle", "seconds"),
}
"""Columns of each side, after its name."""

RATIOS: dict[str, Callable[[Table], tuple[Column, Column]]] = {
    "Time to First Token": per_turn("ttft"),
    "TTFT Answer": per_turn("ttft_answer"),
    "Internal Token Latency": itl_sums,
    "Throughput": lambda table: (table.query("tokens"), table.query("busy")),
    "Speedup": speedup_sums,
    "Mean Accepted Tokens": steps_of("emitted", per="steps"),
    "Acceptance Rate": steps_of("accepted", per="drafted"),
    "Work Amplification": steps_of("verified", per="emitted"),
    "Drafting Share": lambda table: (100.0 * table.query("draft_time"), table.query("busy")),
    "Bandwidth Up": lambda table: (table.query("bytes_up"), table.query("tokens")),
    "Bandwidth Down": lambda table: (table.query("bytes_down"), table.query("tokens")),
    "Goodput": lambda table: (slo_met(table), table.query("busy")),
    **{f"{side.capitalize()} {name}": energy_of(side, *parts) for side in SIDES for name, parts in ENERGY.items()},
    "Rounds per Answer": per_turn("rounds"),
    "Draft-Ahead Hit Rate": lambda table: (table.query("hits"), table.query("ahead")),
    "Cloud Busy Time": verifier_busy_sums,
    "Recovery Time": lambda table: (table.query("lost"), table.query("breaks")),
}
"""Name -> numerator and denominator by query; docs/measuring.md defines each."""

MEANS: dict[str, Callable[[Table], Column]] = {
    "Accuracy": lambda table: table.query("score"),
    "Edge Ratio": lambda table: 100.0 * (1.0 - table.query("hard")),
    "Latency": lambda table: table.query("latency"),
    "Lossless": lossless_share,
    "Near Ties": near_tie_share,
    "Unparsed Answers": lambda table: 100.0 * table.query("unparsed"),
    "Cloud Cost": lambda table: 1000.0 * table.query("cloud_cost"),
    "Edge Cost": lambda table: 1000.0 * table.query("edge_cost"),
    "Early Exits": lambda table: 100.0 * table.query("stopped"),
    "Sent as Text": sent_as(TEXT),
    "Sent as Token Ids": sent_as(TOKEN_IDS),
    "Sent as Hidden States": sent_as(HIDDEN_STATES),
}
"""Name -> values by query: percent, seconds, currency per 1,000 queries."""

CLAIMS = frozenset({
    *("Lossless", "Near Ties", "Speedup", "Mean Accepted Tokens", "Acceptance Rate", "Work Amplification"),
    *("Drafting Share", "Cloud Cost", "Edge Cost"),
})  # fmt: skip
"""Those of ``RATIOS`` and ``MEANS`` that are undefined unless every answer has a value."""

KNOWN = " Known"
"""Suffix of a column that counts the queries with a value in another column."""

DISTRIBUTIONS: dict[str, Callable[[Table], Column]] = {
    "Time to First Token": lambda table: table.turn("ttft"),
    "Latency": lambda table: table.query("latency"),
    "Chunk Gap": lambda table: table.gaps,
    "Routing Overhead": lambda table: table.query("routing"),
}
"""Name -> seconds, reported as percentiles."""


def chance_level(table: Table) -> float:
    """Accuracy of random guessing in percent; NaN unless all scored queries have options."""
    chance = table.query("chance")
    if np.isnan(chance).all():  # before the scores are read: a judge may have failed
        return NAN
    return NAN if np.isnan(chance[~np.isnan(table.query("score"))]).any() else mean(chance)


TOTALS: dict[str, Callable[[Table], float]] = {
    "Edge Prompt Tokens": lambda table: float(table.query("edge_prompt").sum()),
    "Edge Completion Tokens": lambda table: float(table.query("edge_completion").sum()),
    "Edge Tokens Saved": lambda table: float(table.query("saved").sum()),
    "Cloud Prompt Tokens": lambda table: float(table.query("cloud_prompt").sum()),
    "Cloud Completion Tokens": lambda table: float(table.query("cloud_completion").sum()),
    "Thinking Tokens": lambda table: float(table.turn("thinking").sum()),
    "Chance Level": chance_level,
    "Queries": lambda table: float(len(table)),
    "Replayed": lambda table: float(table.query("replayed").sum()),
    "Failed": lambda table: float(table.query("failed").sum()),
    "Retries": lambda table: float(table.turn("retries").sum()),
    "Truncated Prompts": cut_prompts,
    "Model Memory": lambda table: _most_memory(table),
    "Break-Even Round Trip": break_even,
}


def parts_of(name: str, table: Table) -> tuple[Column, Column]:
    """Numerator and denominator by query of one of ``RATIOS`` or ``MEANS`` (denominator 1)."""
    if name in RATIOS:
        return RATIOS[name](table)
    values = MEANS[name](table)
    return values, np.ones_like(values)


def known(name: str, table: Table) -> NDArray[np.bool_]:
    """Whether each query has a value of one of ``RATIOS`` or ``MEANS``."""
    numerator, denominator = parts_of(name, table)
    return ~np.isnan(numerator + denominator)


def sums_of(name: str, table: Table) -> tuple[Column, Column]:
    """``parts_of``; all NaN for one of ``CLAIMS`` that an answered query has no value of."""
    numerator, denominator = parts_of(name, table)
    if name in CLAIMS and np.isnan(numerator + denominator)[table.query("failed") == 0.0].any():
        return np.full(len(table), NAN), np.full(len(table), NAN)
    return numerator, denominator


def all_columns() -> dict[str, Callable[[Table], float]]:
    """Name -> column, without intervals and ``all_known``."""
    found = {**TOTALS, **{name: _value(name) for name in (*RATIOS, *MEANS)}}
    for name, values in DISTRIBUTIONS.items():
        found |= {f"{name} p{percent}": _percentile_of(values, percent) for percent in (50, 90, 95, 99)}
    found["Routing Overhead"] = found["Routing Overhead p50"]
    return found


def all_known() -> dict[str, Callable[[Table], float]]:
    """The columns ``<metric> Known``."""
    return {f"{name}{KNOWN}": _count(name) for name in (*RATIOS, *MEANS)}


def _value(name: str) -> Callable[[Table], float]:
    return lambda table: ratio(*sums_of(name, table))


def _count(name: str) -> Callable[[Table], float]:
    def count(table: Table) -> float:
        try:
            return float(known(name, table).sum())
        except UserError:
            # The metric's own column raises it.
            return 0.0

    return count


def _percentile_of(values: Callable[[Table], Column], percent: float) -> Callable[[Table], float]:
    return lambda table: percentile(values(table), percent)


def _most_memory(table: Table) -> float:
    """MB; NaN if unknown for an answer."""
    memory = table.turn("memory")
    return NAN if np.isnan(memory).any() or not len(memory) else float(memory.max()) / 1e6
