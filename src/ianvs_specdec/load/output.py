"""Results of a sweep as text, CSV and a figure. Columns have the leaderboard's names where it has the same column."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from tabulate import tabulate

from ianvs_specdec.common.storage.cells import csv_text
from ianvs_specdec.routing.evaluation.plot import colours

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
"""Title -> field of ``sweep.json``."""
WITH_INTERVAL = (
    *("Throughput", "Requests per Second", "SLO Goodput"),
    *("Time to First Token p99", "Latency p50", "Latency p99"),
)
ON_SCREEN = (
    *("Policy", "Rate", "Requests", "Throughput", "SLO Goodput", "Latency p50", "Latency p99", "Draft Length"),
    "Lossless",
)
PANELS = (
    ("output_tokens_per_second", "throughput, tokens/s"),
    ("latency.p50", "latency, s: p50 solid, p99 dotted"),
    ("slo_goodput", "requests/s that meet the objectives"),
)
TAIL = "latency.p99"


def to_text(results: Sequence[Mapping[str, Any]]) -> str:
    """A table with the columns ``ON_SCREEN``."""
    rows = [[value_of(row, COLUMNS[title]) for title in ON_SCREEN] for row in results]
    return tabulate(rows, ON_SCREEN, floatfmt=".4g", missingval="")


def to_csv(results: Sequence[Mapping[str, Any]]) -> str:
    """A header, and a row per result. Unknown values are empty cells."""
    titles = [
        name
        for title in COLUMNS
        for name in ([title, f"{title} Low", f"{title} High"] if title in WITH_INTERVAL else [title])
    ]
    return csv_text([titles, *([cell for title in COLUMNS for cell in _cells(title, row)] for row in results)])


def value_of(row: Mapping[str, Any], path: str) -> Any:
    """The value of a dotted name, such as ``ttft.p50``; None if missing."""
    outer, _, inner = path.partition(".")
    value = row.get(outer)
    return value.get(inner) if inner and isinstance(value, Mapping) else None if inner else value


def _cells(title: str, row: Mapping[str, Any]) -> list[Any]:
    value = value_of(row, COLUMNS[title])
    ends = (value_of(row["intervals"], COLUMNS[title]) or [None, None]) if title in WITH_INTERVAL else []
    return ["" if cell is None else cell for cell in (value, *ends)]


def to_png(results: Sequence[Mapping[str, Any]]) -> bytes:
    """Throughput, latency and goodput against the rate, a line with its 95 % interval per policy. Needs matplotlib."""
    # Not pyplot, which looks for a display.
    from matplotlib.figure import Figure

    panels = [panel for panel in PANELS if any(value_of(row, panel[0]) is not None for row in results)]
    policies = list(dict.fromkeys(row["policy"] for row in results))
    figure = Figure(figsize=(4.8 * max(1, len(panels)), 4.2), dpi=120, layout="constrained")
    for axes, (path, label) in zip(figure.subplots(1, max(1, len(panels)), squeeze=False)[0], panels, strict=False):
        for policy, colour in zip(policies, colours(len(policies)), strict=True):
            rows = [row for row in results if row["policy"] == policy]
            _line(axes, rows, path, colour, "-", policy)
            if path.startswith("latency"):
                _line(axes, rows, TAIL, colour, ":")
        axes.set_xlabel("requests per second")
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.25)
        axes.legend(fontsize=8)
    found = io.BytesIO()
    figure.savefig(found, format="png")
    return found.getvalue()


def _line(axes: Any, rows: Sequence[Mapping[str, Any]], path: str, colour: str, style: str, label: str = "") -> None:
    """A line; only lines with a label have a band, since bands would cover each other."""
    known = [
        (row["rate"], value, value_of(row["intervals"], path))
        for row in rows
        if (value := value_of(row, path)) is not None
    ]
    if known:
        rates, values, _ = zip(*known, strict=True)
        axes.plot(rates, values, style, marker="o", markersize=3.5, color=colour, linewidth=1.5, label=label or None)
    bands = [(rate, *ends) for rate, _, ends in known if ends]
    if bands and label:
        rates, low, high = zip(*bands, strict=True)
        axes.fill_between(rates, low, high, color=colour, alpha=0.14, linewidth=0)
