"""A sweep as a picture: needs matplotlib."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from ianvs_specdec.load.tables import value_of
from ianvs_specdec.routing.evaluation.plot import colours

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
