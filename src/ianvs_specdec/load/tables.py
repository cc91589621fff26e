"""A sweep as CSV: a row for each policy and rate, with the leaderboard's names where it has the same column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tabulate import tabulate

from ianvs_specdec.common.storage.cells import csv_text

COLUMNS = {
    "Policy": "policy",
    "Rate": "rate",
    "Arrivals": "arrivals",
    "Rounds": "rounds",
    "Requests": "requests",
    "Completed": "completed",
    "Refused": "refused",
    "Failed": "failed",
    "Unreported": "unreported",
    "Throughput": "output_tokens_per_second",
    "Requests per Second": "requests_per_second",
    "SLO Goodput": "slo_goodput",
    **{
        f"{title} {quantile}": f"{name}.{quantile}"
        for title, name in (
            ("Time to First Token", "ttft"),
            ("Time per Output Token", "tpot"),
            ("Internal Token Latency", "itl"),
            ("Latency", "latency"),
        )
        for quantile in ("mean", "p50", "p90", "p95", "p99")
    },
    "Acceptance Rate": "acceptance_rate",
    "Mean Accepted Tokens": "mean_accepted_tokens",
    "Work Amplification": "work_amplification",
    "Draft Length": "draft_length",
    "Queue": "queue.mean",
    "Sequences": "sequences.mean",
    "Lossless": "lossless.share",
    "Client CPU": "client_cpu_seconds",
}
"""Per title: where ``sweep.json`` has it."""
BOUNDED = ("Throughput", "Requests per Second", "SLO Goodput", "Time to First Token p99", "Latency p50", "Latency p99")
"""Those with their interval's ends beside them."""


SHOWN = (
    *("Policy", "Rate", "Requests", "Throughput", "SLO Goodput", "Latency p50", "Latency p99", "Draft Length"),
    "Lossless",
)
"""The columns on the screen."""


def to_text(results: Sequence[Mapping[str, Any]]) -> str:
    """The columns ``SHOWN``, for the screen."""
    rows = [[value_of(row, COLUMNS[title]) for title in SHOWN] for row in results]
    return tabulate(rows, SHOWN, floatfmt=".4g", missingval="")


def to_csv(results: Sequence[Mapping[str, Any]]) -> str:
    """The header and a row for each result. What is not known is an empty cell."""
    titles = [
        name
        for title in COLUMNS
        for name in ([title, f"{title} Low", f"{title} High"] if title in BOUNDED else [title])
    ]
    return csv_text([titles, *([cell for title in COLUMNS for cell in _cells(title, row)] for row in results)])


def value_of(row: Mapping[str, Any], place: str) -> Any:
    """The value of a dotted name: ``ttft.p50`` is ``p50`` of the object ``ttft``; None if it is missing."""
    outer, _, inner = place.partition(".")
    found = row.get(outer)
    return found.get(inner) if inner and isinstance(found, Mapping) else None if inner else found


def _cells(title: str, row: Mapping[str, Any]) -> list[Any]:
    value = value_of(row, COLUMNS[title])
    ends = (value_of(row["intervals"], COLUMNS[title]) or [None, None]) if title in BOUNDED else []
    return ["" if cell is None else cell for cell in (value, *ends)]
