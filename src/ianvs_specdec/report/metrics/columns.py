"""The metrics, each a function of the table of results. Ratios are ratios of sums; what is undefined is NaN.

``RATIOS`` and ``MEANS`` hold what also has an interval: a ratio of two columns of queries, a mean over queries.
Each has a column ``<metric> Known``, the number of queries that it knows. Those in ``CLAIMS`` say something of all
answers: they are undefined where one answer is not known.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.report.metrics import split
from ianvs_specdec.report.metrics.rows import HIDDEN_STATES, TEXT, TOKEN_IDS
from ianvs_specdec.report.metrics.table import NAN, Column, Table
from ianvs_specdec.workspace.sides import SIDES


def ratio(numerator: Column, denominator: Column) -> float:
    """Sum over sum, over the queries that have both; NaN without a denominator."""
    both = ~(np.isnan(numerator) | np.isnan(denominator))
    total = float(denominator[both].sum())
    return float(numerator[both].sum()) / total if total > 0 else NAN


def mean(column: Column) -> float:
    """Mean of the defined values; NaN without any."""
    defined = column[~np.isnan(column)]
    return float(defined.mean()) if len(defined) else NAN


def percentile(column: Column, percent: float) -> float:
    """Percentile of the defined values, interpolated linearly; NaN without any."""
    defined = column[~np.isnan(column)]
    return float(np.percentile(defined, percent)) if len(defined) else NAN


# Columns of queries that metrics are means or ratios of


def ttft_sums(table: Table) -> tuple[Column, Column]:
    """Seconds to the first token summed over the turns, and the number of turns."""
    return table.query("ttft"), table.by_query(np.ones_like(table.turn("ttft")))


def ttft_answer_sums(table: Table) -> tuple[Column, Column]:
    """Seconds to the first token behind the thoughts summed over the turns, and the number of turns."""
    return table.query("ttft_answer"), table.by_query(np.ones_like(table.turn("ttft_answer")))


def itl_sums(table: Table) -> tuple[Column, Column]:
    """Seconds from the first to the last chunk, and the tokens that came after the first chunk."""
    seconds = table.by_query(table.turn("latency") - table.turn("ttft"))
    return seconds, table.query("tokens") - table.query("first_tokens")


def steps_of(name: str, per: str) -> Callable[[Table], tuple[Column, Column]]:
    """Two columns of verification steps, NaN for a query of which the back end did not report every step: after the
    first token, every token comes from a step. Numbers of drafted tokens may be known without the steps."""

    def sums(table: Table) -> tuple[Column, Column]:
        told = table.turn("emitted") + 1 >= table.turn("tokens")
        if per == "drafted":
            told |= (table.turn("steps") == 0) & (table.turn("drafted") > 0)
        known = ~np.isnan(table.by_query(np.where(told, 0.0, NAN)))
        first, second = (np.where(known, table.query(column), NAN) for column in (name, per))
        return first, second

    return sums


def speedup_sums(table: Table) -> tuple[Column, Column]:
    """Seconds that the autoregressive baseline takes for as many tokens, and seconds taken. Requests whose context
    changed because an earlier turn was not lossless cannot have a baseline and are left out."""
    theirs, seconds = table.turn("base_busy"), table.turn("busy")
    after_difference = _after_difference(table)
    theirs, seconds = np.where(after_difference, 0.0, theirs), np.where(after_difference, 0.0, seconds)
    return table.by_query(theirs), table.by_query(seconds)


def _after_difference(table: Table) -> NDArray[np.bool_]:
    """Per turn: whether an earlier turn of the same query differed from the baseline."""
    index = table.turn("query").astype(np.intp)
    differs = np.where(np.isnan(table.turn("base_tokens")), 0.0, table.turn("identical") == 0.0)
    before = np.cumsum(differs) - differs
    first_turn = np.searchsorted(index, index)
    return before - before[first_turn] > 0 if len(index) else np.zeros(0, dtype=bool)


def lossless_share(table: Table) -> Column:
    """100 if all turns are identical to the target's own output without drafts, else 0; NaN if unknown."""
    return 100.0 * _until_difference(table, "identical", combine=np.minimum)


def near_tie_share(table: Table) -> Column:
    """100 if the first difference to the target's own greedy output is at a near-tie, else 0; NaN if unknown."""
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
    """Two columns of a side's energy (see ``rows.ENERGY``) or tokens."""
    return lambda table: (table.query(f"{side}_{part}"), table.query(f"{side}_{per}"))


def sent_as(form: float) -> Callable[[Table], Column]:
    """100 for a query that leaves the edge in this form, else 0."""
    return lambda table: 100.0 * (table.query("sent") == form)


def slo_met(table: Table) -> Column:
    """1 if every turn meets the limits on ``ttft`` and ``itl``, and the query that on ``latency``; NaN without any."""
    index = table.turn("query").astype(np.intp)
    ttft, latency = table.turn("ttft"), table.turn("latency")
    after = table.turn("tokens") - table.turn("first_tokens")
    itl = np.divide(latency - ttft, after, out=np.zeros_like(after), where=after > 0)
    missed = (ttft > table.query("slo_ttft")[index]) | (itl > table.query("slo_itl")[index]) | np.isnan(latency)
    late = table.query("latency") > table.query("slo_latency")
    met = np.where(late | (table.by_query(missed.astype(np.float64)) > 0), 0.0, 1.0)
    return np.where(np.isnan(table.query("slo_latency")), NAN, met)


def cut_prompts(table: Table) -> float:
    """Prompts that lost tokens; NaN if none is known and servers do not report all."""
    known = float(table.query("truncated").sum())
    return NAN if not known and table.query("untold").any() else known


ENERGY = {
    "Energy per Token": ("joules", "completion"),
    "Mean Power": ("joules", "seconds"),
    "Idle Power": ("idle", "seconds"),
}
"""Columns of each side, behind its name."""

RATIOS: dict[str, Callable[[Table], tuple[Column, Column]]] = {
    "Time to First Token": ttft_sums,
    "TTFT Answer": ttft_answer_sums,
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
    **split.RATIOS,
}
"""Per name: two columns of queries, whose sums are divided; docs/measuring.md defines each."""

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
"""Per name: a column of queries to take the mean of. Percent, seconds, currency per 1,000 queries."""

CLAIMS = frozenset({
    *("Lossless", "Near Ties", "Speedup", "Mean Accepted Tokens", "Acceptance Rate", "Work Amplification"),
    *("Drafting Share", "Cloud Cost", "Edge Cost"),
})  # fmt: skip
"""Those of ``RATIOS`` and ``MEANS`` that say something of every answer, which a part of them cannot stand for."""

KNOWN = " Known"
"""End of the name of a column that counts the queries that another one knows."""

DISTRIBUTIONS: dict[str, Callable[[Table], Column]] = {
    "Time to First Token": lambda table: table.turn("ttft"),
    "Latency": lambda table: table.query("latency"),
    "Chunk Gap": lambda table: table.gaps,
    "Routing Overhead": lambda table: table.query("routing"),
}
"""Per name: seconds to take percentiles of."""


def chance_level(table: Table) -> float:
    """Accuracy of guessing among the options, in percent; NaN unless all queries that are scored have options."""
    chance = table.query("chance")
    if np.isnan(chance).all():  # nor need there be scores: a judge may have failed
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
    "Break-Even Round Trip": split.break_even,
}


def parts_of(name: str, table: Table) -> tuple[Column, Column]:
    """Numerator and denominator by query of one of ``RATIOS`` or ``MEANS``; a mean is a ratio to ones."""
    if name in RATIOS:
        return RATIOS[name](table)
    values = MEANS[name](table)
    return values, np.ones_like(values)


def known(name: str, table: Table) -> NDArray[np.bool_]:
    """Per query: whether the metric, one of ``RATIOS`` or ``MEANS``, is known of it."""
    numerator, denominator = parts_of(name, table)
    found: NDArray[np.bool_] = ~(np.isnan(numerator) | np.isnan(denominator))
    return found


def sums_of(name: str, table: Table) -> tuple[Column, Column]:
    """``parts_of``, NaN throughout for a claim that is unknown for an answer; failed queries have no part in it."""
    numerator, denominator = parts_of(name, table)
    answered = table.query("failed") == 0.0
    if name in CLAIMS and np.isnan(numerator + denominator)[answered].any():
        return np.full(len(table), NAN), np.full(len(table), NAN)
    return numerator, denominator


def all_columns() -> dict[str, Callable[[Table], float]]:
    """Every column by name, intervals and counts of what is known apart."""
    found = dict(TOTALS)
    found |= {name: _value(name) for name in (*RATIOS, *MEANS)}
    for name, values in DISTRIBUTIONS.items():
        found |= {f"{name} p{percent}": _of_percentile(values, percent) for percent in (50, 90, 95, 99)}
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
            # The metric itself says why it knows nothing.
            return 0.0

    return count


def _of_percentile(values: Callable[[Table], Column], percent: float) -> Callable[[Table], float]:
    return lambda table: percentile(values(table), percent)


def _most_memory(table: Table) -> float:
    """MB; NaN if it is unknown for a model that answered."""
    memory = table.turn("memory")
    return NAN if np.isnan(memory).any() or not len(memory) else float(memory.max()) / 1e6
