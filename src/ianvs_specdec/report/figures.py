"""Figures of a test case: leaderboard values, completed from its answers, and data of the charts."""

from __future__ import annotations

import collections
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ianvs_specdec.benchmarks.files import records
from ianvs_specdec.benchmarks.registry import categories as benchmark_categories
from ianvs_specdec.benchmarks.scorers import SCORERS
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.report.metrics.columns import DISTRIBUTIONS, KNOWN, all_columns
from ianvs_specdec.report.metrics.intervals import all_intervals
from ianvs_specdec.report.metrics.table import Table, rounded
from ianvs_specdec.workspace.cases import Case, Row

QUANTILES = (*range(101), 99.5, 99.9)
"""Percents at which a distribution is sampled."""
GROUPED = ("Accuracy", "Speedup", "Mean Accepted Tokens", "Throughput", "Latency", "Edge Ratio")
UNSAFE = ("judge", "code")
"""Scorers that call a model or run code: a report shows the leaderboard's values instead."""

Kinds = dict[str, dict[str, float | None]]

_COLUMNS = {row["name"]: row for _, row in records(Path(__file__).with_name("columns.csv"))}
"""Per column: unit, direction (1: more is better, -1: less is better, 0: neither) and meaning."""
_PART = re.compile(r"^(?P<base>.*?)(?: p\d+)?(?:: .*)?(?P<end> CI95| Known)?$")


def column(name: str) -> dict[str, Any]:
    """Unit, direction (1: more is better, -1: less is better) and meaning of a column of the leaderboard."""
    match = _PART.match(name)
    base = match["base"] if match else name
    known = _COLUMNS.get(base) or _COLUMNS.get(base.partition(" ")[2]) or {"unit": "", "better": "0", "about": ""}
    if match and match["end"] == KNOWN:
        known = {"unit": "", "better": "0", "about": f"number of queries of which {base} is known"}
    return {"name": name, "unit": known["unit"], "better": int(known["better"]), "about": known["about"]}


def plain(value: float) -> float | None:
    """None for NaN and infinity, which JSON does not have."""
    return value if math.isfinite(value) else None


def safe(row: Row) -> Row:
    """The row with scorer ``none`` if scoring it would call a model or run code."""
    if row[1].get("scorer") not in UNSAFE and row[1].get("scorer", "none") in SCORERS:
        return row
    result = type(row[1])(row[1])
    result["scorer"] = "none"
    return row[0], result, *row[2:]


def figures(case: Case, metrics: Sequence[str], table: Table) -> dict[str, float | None]:
    """Name -> value from the leaderboard, whose columns are ``metrics``, else computed from the answers. Adds a note
    if both differ."""
    ranked = {name: _number(case.rank[name]) for name in metrics if name in case.rank}
    found: dict[str, float | None] = dict(ranked)
    if not len(table):
        return found
    differing = []
    for name, compute in {**all_columns(), **all_intervals()}.items():
        value, known = _compute(compute, table), ranked.get(name)
        if name not in ranked:
            found[name] = value
        elif value is not None and known is not None and not math.isclose(value, known, rel_tol=1e-5, abs_tol=1e-12):
            differing.append(f"{name} {value:g} (leaderboard: {known:g})")
    if differing and not case.repeats and not case.notes:
        shown = ", ".join(differing[:3]) + (f" and {len(differing) - 3} more" if len(differing) > 3 else "")
        case.notes.append(f"recomputed from the answers and the data file, these figures differ: {shown}")
    return found


def _number(text: str) -> float | None:
    try:
        return plain(float(text))
    except ValueError:
        return None


def _compute(column: Callable[[Table], float], table: Table) -> float | None:
    try:
        return plain(rounded(column(table)))
    except (UserError, ValueError, TypeError, KeyError, IndexError, ImportError):
        return None


def positions(rows: Mapping[int, Row]) -> dict[str, Any] | None:
    """``drafts``: number of verified drafts; ``rates``: share of them whose first, second, ... token was accepted. None
    without drafts or unless all steps are known."""
    accepted: collections.Counter[int] = collections.Counter()
    for row in rows.values():
        for turn in row[1].get("turns", ()):
            steps, chunks = turn["trace"]["steps"], turn["trace"]["chunks"]
            if sum(step[2] for step in steps) + 1 < sum(chunk[1] for chunk in chunks):
                return None
            accepted.update(step[1] for step in steps if step[0])
    if not accepted:
        return None
    right = [sum(count for number, count in accepted.items() if number > k) for k in range(max(1, *accepted))]
    return {"drafts": accepted.total(), "rates": [float(f"{count / accepted.total():.4g}") for count in right]}


def distributions(table: Table) -> dict[str, Any]:
    """Name -> values (seconds) at ``QUANTILES`` and their count, if any value is defined."""
    found = {}
    for name, values in DISTRIBUTIONS.items():
        defined = values(table)
        defined = defined[~np.isnan(defined)]
        if len(defined):
            points = [float(f"{value:.4g}") for value in np.percentile(defined, QUANTILES)]
            found[name] = {"count": len(defined), "values": points}
    return found


def groups(table: Table) -> Kinds:
    """Group -> figures of its queries, with intervals; empty if there is only one group."""
    names, members = np.unique(np.array(table.groups, dtype=object).astype(str), return_inverse=True)
    if len(names) < 2:
        return {}
    return {str(name) or "other": _of_part(table, members == number) for number, name in enumerate(names)}


def categories(table: Table) -> Kinds:
    """As ``groups``, by the benchmarks' categories, such as MMLU's four; empty unless they are fewer."""
    kinds = np.array(table.groups, dtype=object).astype(str)
    present = set(kinds.tolist())
    sets = {name: present & members for name, members in benchmark_categories().items()}
    # A category inside another one, such as MT-Bench's in a Spec-Bench type, is left out.
    sets = {name: own for name, own in sets.items() if own and not any(own < other for other in sets.values())}
    sets |= {kind or "other": {kind} for kind in sorted(present - set().union(*sets.values()))}
    if not 1 < len(sets) < len(present):
        return {}
    return {name: _of_part(table, np.isin(kinds, list(members))) for name, members in sets.items()}


def _of_part(table: Table, chosen: NDArray[np.bool_]) -> dict[str, float | None]:
    """Figures of the chosen queries, with intervals."""
    known = {**all_columns(), **all_intervals()}
    part = table.part(np.flatnonzero(chosen))
    values = {name: rounded(known[name](part)) for metric in GROUPED for name in (metric, f"{metric} CI95")}
    return {"Queries": float(len(part)), **{name: plain(value) for name, value in values.items()}}


def described(mapping: Mapping[str, Any]) -> dict[str, str]:
    """A configuration flattened to texts, keys joined by dots, without credentials in URLs."""
    flat: dict[str, str] = {}
    for key, value in mapping.items():
        if isinstance(value, Mapping):
            flat |= {f"{key}.{name}": text for name, text in described(value).items()}
        elif isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
            numbered = {str(number): item for number, item in enumerate(value, 1)}
            flat |= {f"{key}.{name}": text for name, text in described(numbered).items()}
        else:
            text = "" if value is None else ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            flat[str(key)] = re.sub(r"(?<=://)[^/@\s]*@", "", text)
    return flat
