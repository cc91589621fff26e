"""An evaluation as tables to read, as CSV and as JSON. What is not defined is empty."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tabulate import tabulate

from ianvs_specdec.common.storage.cells import csv_text
from ianvs_specdec.routing.evaluation.bootstrap import LEVEL, Estimate
from ianvs_specdec.routing.evaluation.pool import share_of
from ianvs_specdec.routing.evaluation.results import GRID, LEVELS, Curve, Difference, Evaluation, Result

FORMAT = 1
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
    "accuracy": ("accuracy", "{:.3f}"),
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
    "over all thresholds; cost: money, drop when 20 or 40 % of what the cloud costs more is saved": BY_COST,
    "what is sent to the cloud, and what comes of it": DECIDED,
    "quality above the better model alone and below the oracle; distance from the frontier of these routers": COMPARED,
    "decisions (right: exactly what the cloud answers better goes there), and calibration": JUDGED,
    "routing overhead, queries one by one": TIMES,
}
POOL_TITLES = {
    "from the cheapest model to the dearest; drop: below the dearest when 20 or 40 % of the way is saved": BY_COST,
    "what comes of the choices; PGR: of the way from the cheapest model to the dearest": DECIDED,
    "quality above the best model alone and below the oracle; distance from the frontier of these routers": COMPARED,
    "routing overhead, queries one by one": TIMES,
}


def _shares(evaluation: Evaluation) -> dict[str, tuple[str, str]]:
    """Which part of the queries each model of a pool is asked."""
    return {share_of(name): (name, "{:.1f}") for name in evaluation.models}


def _metrics(evaluation: Evaluation) -> tuple[str, ...]:
    return (*METRICS, *_shares(evaluation))


def _cost_axis(evaluation: Evaluation) -> str:
    """What the curves are told over, in %: the queries in the cloud, or the way to the dearest model's cost."""
    return "cost_share" if evaluation.models else "cloud_share"


def to_text(evaluation: Evaluation) -> str:
    """The tables for the screen."""
    titles: dict[str, dict[str, tuple[str, str]]] = TITLES
    if evaluation.models:
        titles = {**POOL_TITLES, "queries that each model is asked, %": _shares(evaluation)}
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


def metrics_csv(evaluation: Evaluation) -> str:
    """One line per router; each metric with the ends of its interval."""
    metrics = _metrics(evaluation)
    header = ["router", "threshold", *(f"{name}{end}" for name in metrics for end in ("", "_low", "_high"))]
    rows = []
    for result in evaluation.results:
        found = [result.metrics.get(name) for name in metrics]
        ends = [(one.value, one.low, one.high) if one else (None, None, None) for one in found]
        rows.append([result.name, _number(result.threshold), *(_number(value) for three in ends for value in three)])
    return _csv(header, rows)


def curves_csv(evaluation: Evaluation) -> str:
    """One line per router and percent of the cost."""
    header = ["router", _cost_axis(evaluation), "threshold", "quality", "quality_low", "quality_high", "cost"]
    rows = []
    for result in evaluation.results:
        if (curve := result.curve) is not None:
            for place, share in enumerate(GRID):
                columns = (curve.quality, curve.low, curve.high, curve.cost)
                numbers = [_number(None if column is None else column[place]) for column in columns]
                threshold = None if result.baseline else curve.thresholds[place]
                rows.append([result.name, f"{100 * share:.0f}", _number(threshold), *numbers])
    return _csv(header, rows)


def comparisons_csv(evaluation: Evaluation) -> str:
    """One line per pair of routers, kind of cost, and APGR or cost level."""
    header = ["first", "second", "cost", "metric", "level", "difference", "low", "high", "p"]
    rows = [
        [item.first, item.second, item.axis, item.metric, _number(None if item.level is None else 100 * item.level)]
        + [_number(value) for value in (item.value, item.low, item.high, item.p)]
        for item in evaluation.differences
    ]
    return _csv(header, rows)


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
        "routers": [
            {
                "name": result.name,
                "baseline": result.baseline,
                "threshold": _plain(result.threshold),
                "metrics": {
                    name: {"value": _plain(one.value), "low": _plain(one.low), "high": _plain(one.high)}
                    for name in _metrics(evaluation)
                    if (one := result.metrics.get(name)) is not None
                },
                "curve": _points(result.curve, _cost_axis(evaluation)),
            }
            for result in evaluation.results
        ],
        "comparisons": [
            {name: _plain(value) if name in _NUMBERS else value for name, value in vars(item).items()}
            for item in evaluation.differences
        ],
        "ahead_of_random_at_levels": {
            result.name: evaluation.ahead_of_random(result.name) for result in evaluation.results if not result.baseline
        },
    }


_NUMBERS = ("level", "value", "low", "high", "p")


def _points(curve: Curve | None, axis: str) -> dict[str, list[float | None]] | None:
    if curve is None:
        return None
    columns = {axis: 100 * GRID, **vars(curve)}
    return {name: [_plain(value) for value in column] for name, column in columns.items() if column is not None}


def _plain(value: float | None) -> float | None:
    """Six significant digits; None for what is not defined."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.6g}")


def _number(value: float | None) -> str:
    return "" if (plain := _plain(value)) is None else repr(plain)


def _csv(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return csv_text([header, *rows])
