"""Results of a sweep as a table (text, CSV) and as a figure."""

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


PANELS = (
    ("output_tokens_per_second", "throughput, tokens/s"),
    ("latency.p50", "latency, s: p50 solid, p99 dotted"),
    ("slo_goodput", "requests/s that meet the objectives"),
)
TAIL = "latency.p99"


def to_png(results: Sequence[Mapping[str, Any]]) -> bytes:
    """Throughput, latency and, with objectives, goodput against the rate: a line for each policy, with its 95 %
    interval as a band."""
    # Without pyplot: it would look for a screen.
    from matplotlib.figure import Figure

    panels = [panel for panel in PANELS if any(value_of(row, panel[0]) is not None for row in results)]
    policies = list(dict.fromkeys(row["policy"] for row in results))
    figure = Figure(figsize=(4.8 * max(1, len(panels)), 4.2), dpi=120, layout="constrained")
    for axes, (place, label) in zip(figure.subplots(1, max(1, len(panels)), squeeze=False)[0], panels, strict=False):
        for policy, colour in zip(policies, colours(len(policies)), strict=True):
            rows = [row for row in results if row["policy"] == policy]
            _line(axes, rows, place, colour, "-", policy)
            if place.startswith("latency"):
                _line(axes, rows, TAIL, colour, ":")
        axes.set_xlabel("requests a second")
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.25)
        axes.legend(fontsize=8)
    found = io.BytesIO()
    figure.savefig(found, format="png")
    return found.getvalue()


def _line(axes: Any, rows: Sequence[Mapping[str, Any]], place: str, colour: str, style: str, label: str = "") -> None:
    """A line, and its band where it has a label: bands of all lines would hide each other."""
    known = [
        (row["rate"], value, value_of(row["intervals"], place))
        for row in rows
        if (value := value_of(row, place)) is not None
    ]
    if known:
        rates, values, _ = zip(*known, strict=True)
        name = label or None
        axes.plot(rates, values, style, marker="o", markersize=3.5, color=colour, linewidth=1.5, label=name)
    bands = [(rate, *ends) for rate, _, ends in known if ends]
    if bands and label:
        rates, low, high = zip(*bands, strict=True)
        axes.fill_between(rates, low, high, color=colour, alpha=0.14, linewidth=0)
