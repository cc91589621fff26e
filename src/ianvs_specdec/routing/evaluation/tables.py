"""An evaluation as tables to read, as CSV and as JSON. What is not defined is empty."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tabulate import tabulate

from ianvs_specdec.common.storage.cells import csv_text
from ianvs_specdec.routing.evaluation.bootstrap import LEVEL, Estimate
from ianvs_specdec.routing.evaluation.metrics import share_of
from ianvs_specdec.routing.evaluation.results import GRID, LEVELS, Difference, Evaluation, Result
from ianvs_specdec.routing.evaluation.rewording import KINDS

FORMAT = 2
Row = dict[str, str | float | bool | None]

SHOWN = 30
"""No more pairs than these are on the screen."""

OVERALL = {
    "apgr": ("APGR", "{:.3f}"),
    "cpt50": ("CPT 50 %, %", "{:.1f}"),
    "cpt80": ("CPT 80 %, %", "{:.1f}"),
    "auroc": ("AUROC", "{:.3f}"),
}
DROPS = {
    "drop20": ("at 20 %, points", "{:.2f}"),
    "drop40": ("at 40 %, points", "{:.2f}"),
    "drop20_relative": ("at 20 %, %", "{:.2f}"),
    "drop40_relative": ("at 40 %, %", "{:.2f}"),
}
BY_COST = {f"{name}_money": known for name, known in (OVERALL | DROPS).items() if name[-1].isdigit() or name == "apgr"}
DECIDED = {
    "share": ("to cloud, %", "{:.1f}"),
    "quality": ("quality, %", "{:.2f}"),
    "quality_of_cloud": ("% of cloud's", "{:.1f}"),
    "cost": ("cost per 1000", "{:.4g}"),
    "pgr": ("PGR", "{:.3f}"),
}
JUDGED = {
    "accuracy": ("decisions right", "{:.3f}"),
    "precision": ("precision", "{:.3f}"),
    "recall": ("recall", "{:.3f}"),
    "f1": ("F1", "{:.3f}"),
    "ece": ("ECE", "{:.3f}"),
}
TIMES = {
    "overhead_p50": ("p50, ms", "{:.3f}"),
    "overhead_p95": ("p95, ms", "{:.3f}"),
}
COMPARED = {
    "gain_best": ("Gain@Best, %", "{:+.2f}"),
    "gap_oracle": ("Gap@Oracle, %", "{:.2f}"),
    "pareto_dist": ("ParetoDist", "{:.3f}"),
    "pareto_dist_money": ("ParetoDist by cost", "{:.3f}"),
}
METRICS = (*OVERALL, *DROPS, *BY_COST, *DECIDED, *JUDGED, *TIMES, *COMPARED)
"""All metrics, in the order of the columns; for a pool those of ``_shares`` come after them."""

TITLES = {
    "over all thresholds; cost: share of the queries in the cloud": OVERALL,
    "quality below the cloud alone when 20 or 40 % of the queries stay on the edge": DROPS,
    "over all thresholds; cost: money; drop: when 20 or 40 % of the difference in cost is saved": BY_COST,
    "decisions, and what comes of them": DECIDED,
    "quality above the best model alone and below the oracle; distance from the frontier of these routers": COMPARED,
    "decisions (right: exactly what the cloud answers better goes there), and calibration": JUDGED,
    "routing overhead, queries one by one": TIMES,
}
"""A table is shown if an evaluation has one of its metrics."""

REWORDED = {
    "decisions that flip when a question is reworded, %": ("flips", "{:.1f}"),
    "mean change of the score when a question is reworded": ("change", "{:.3f}"),
}
"""Title -> measure of ``robustness``, and how its values are shown."""


def _shares(evaluation: Evaluation) -> dict[str, tuple[str, str]]:
    """Which part of the queries each model of a pool is asked."""
    return {share_of(name): (name, "{:.1f}") for name in evaluation.models}


def _reworded(evaluation: Evaluation) -> dict[str, dict[str, tuple[str, str]]]:
    """The columns of each table of ``REWORDED``, of those that this evaluation has."""
    known = {name for result in evaluation.results for name in result.metrics}
    columns = {
        title: {f"{measure}:{kind}": (kind, form) for kind in (*KINDS, "all") if f"{measure}:{kind}" in known}
        for title, (measure, form) in REWORDED.items()
    }
    return {title: found for title, found in columns.items() if found}


def to_text(evaluation: Evaluation) -> str:
    titles = {**TITLES, "queries that each model is asked, %": _shares(evaluation), **_reworded(evaluation)}
    blocks = [_table(title, columns, evaluation.results) for title, columns in titles.items()]
    return "\n\n".join(filter(None, [*blocks, _comparisons(evaluation)])) + "\n"


def _table(title: str, columns: Mapping[str, tuple[str, str]], results: Sequence[Result]) -> str:
    shown = [name for name in columns if any(name in result.metrics for result in results)]
    rows = [result for result in results if any(name in result.metrics for name in shown)]
    if not rows:
        return ""
    cells = [["", *(columns[name][0] for name in shown)]]
    named = columns is DECIDED
    cells += [[_name(row, named), *(_cell(row.metrics.get(name), columns[name][1]) for name in shown)] for row in rows]
    return "\n".join([title, *_aligned(cells)])


def _name(result: Result, decided: bool) -> str:
    """With the threshold where it matters."""
    return f"{result.name} (at {result.threshold:.4g})" if decided and result.threshold is not None else result.name


def _cell(found: Estimate | None, form: str) -> str:
    if found is None:
        return ""
    value = form.format(found.value)
    ends = [form.format(end) for end in (found.low, found.high) if not math.isnan(end)]
    return value if not ends or all(end == value for end in ends) else f"{value} [{', '.join(ends)}]"


def _aligned(cells: Sequence[Sequence[str]]) -> list[str]:
    right = ["left", *["right"] * (len(cells[0]) - 1)]
    text = tabulate(cells, tablefmt="plain", disable_numparse=True, preserve_whitespace=True, colalign=right)
    return [f"  {line}".rstrip() for line in text.splitlines()]


def _comparisons(evaluation: Evaluation) -> str:
    """Differences of APGR, and at how many cost levels a router is ahead."""
    cells = [["", "difference of APGR", "p", "ahead at", "behind at"]]
    for item in evaluation.differences:
        if item.metric == "apgr" and not math.isnan(item.value):
            form = "{:+.3f}"
            levels = [one for one in evaluation.differences if _same_pair(one, item) and one.metric == "quality"]
            ahead, behind = sum(one.low > 0 for one in levels), sum(one.high < 0 for one in levels)
            name = f"{item.first} to {item.second}" + (", by cost" if item.axis == "money" else "")
            interval = _cell(Estimate(item.value, item.low, item.high), form)
            cells.append([name, interval, "" if math.isnan(item.p) else f"{item.p:.2g}", str(ahead), str(behind)])
    if len(cells) == 1:
        return ""
    more = f"\n  and {len(cells) - 1 - SHOWN} more in comparisons.csv" if len(cells) - 1 > SHOWN else ""
    title = f"paired differences; of {len(LEVELS)} cost levels (5 to 95 %), those with an interval that excludes 0"
    return "\n".join([title, *_aligned(cells[: SHOWN + 1])]) + more


def _same_pair(one: Difference, other: Difference) -> bool:
    return (one.first, one.second, one.axis) == (other.first, other.second, other.axis)


def metrics_rows(evaluation: Evaluation) -> list[Row]:
    rows = []
    names = (*METRICS, *_shares(evaluation), *itertools.chain(*_reworded(evaluation).values()))
    for result in evaluation.results:
        row: Row = {"router": result.name, "baseline": result.baseline, "threshold": _plain(result.threshold)}
        for name in names:
            found = result.metrics.get(name) or Estimate(math.nan, math.nan, math.nan)
            ends = (_plain(value) for value in (found.value, found.low, found.high))
            row |= zip((name, f"{name}_low", f"{name}_high"), ends, strict=True)
        rows.append(row)
    return rows


def curves_rows(evaluation: Evaluation) -> list[Row]:
    # What the curves are over, in %: the queries in the cloud, or the way to the dearest model's cost.
    axis = "cost_share" if evaluation.models else "cloud_share"
    rows = []
    for result in evaluation.results:
        if (curve := result.curve) is not None:
            cost = np.full(len(GRID), np.nan) if curve.cost is None else curve.cost
            columns = {
                axis: 100 * GRID,
                "threshold": np.full(len(GRID), np.nan) if result.baseline else curve.thresholds,
                "quality": curve.quality,
                "quality_low": curve.low,
                "quality_high": curve.high,
                "cost": cost,
            }
            for values in zip(*columns.values(), strict=True):
                rows.append({"router": result.name, **dict(zip(columns, map(_plain, values), strict=True))})
    return rows


def comparisons_rows(evaluation: Evaluation) -> list[Row]:
    rows = []
    for item in evaluation.differences:
        level = None if item.level is None else 100 * item.level
        numbers = {"level": level, "difference": item.value, "low": item.low, "high": item.high, "p": item.p}
        names = {"first": item.first, "second": item.second, "cost": item.axis, "metric": item.metric}
        rows.append({**names, **{name: _plain(value) for name, value in numbers.items()}})
    return rows


def to_csv(rows: Sequence[Row]) -> str:
    cells = [["" if value is None else str(value) for value in row.values()] for row in rows]
    return csv_text([list(rows[0]) if rows else [], *cells])


def to_document(evaluation: Evaluation, **about: Any) -> dict[str, Any]:
    """Everything as a JSON value, with ``about`` first."""
    return {
        "format": FORMAT,
        **about,
        "queries": evaluation.queries,
        "bootstrap": {
            "resamples": evaluation.resamples,
            "seed": evaluation.seed,
            "level": LEVEL,
            "over": "queries",
            "stratified": False,
            "paired": True,
        },
        "metrics": metrics_rows(evaluation),
        "curves": curves_rows(evaluation),
        "comparisons": comparisons_rows(evaluation),
    }


def _plain(value: float | None) -> float | None:
    """Six significant digits; None for what is not defined."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.6g}")
