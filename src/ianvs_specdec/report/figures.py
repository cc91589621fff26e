"""Figures of a test case: the leaderboard's, completed from its answers, and those of the charts."""

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
"""Percents at which a distribution is kept: the values in between are interpolated."""
GROUPED = ("Accuracy", "Speedup", "Mean Accepted Tokens", "Throughput", "Latency", "Edge Ratio")
ASKING = ("judge", "code")
"""Scorers that call a model or run code. A report does neither: it shows the leaderboard's values."""

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
    """NaN and infinity, which JSON does not have, are None."""
    return value if math.isfinite(value) else None


def safe(row: Row) -> Row:
    """The row as metrics may see it here: nothing is asked and nothing is run to score it."""
    if row[1].get("scorer") not in ASKING and row[1].get("scorer", "none") in SCORERS:
        return row
    result = type(row[1])(row[1])
    result["scorer"] = "none"
    return row[0], result, *row[2:]


def figures(case: Case, metrics: Sequence[str], table: Table) -> dict[str, float | None]:
    """Name -> value: the leaderboard's, whose columns are ``metrics``, else computed from the answers. A note says
    where the answers give other values than the leaderboard."""
    told = {name: _number(case.rank[name]) for name in metrics if name in case.rank}
    found: dict[str, float | None] = dict(told)
    if not len(table):
        return found
    differing = []
    for name, compute in {**all_columns(), **all_intervals()}.items():
        value, said = _compute(compute, table), told.get(name)
        if name not in told:
            found[name] = value
        elif value is not None and said is not None and not math.isclose(value, said, rel_tol=1e-5, abs_tol=1e-12):
            differing.append(f"{name} {value:g} (leaderboard: {said:g})")
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
    """``drafts``: how many were verified; ``rates``: the share of them whose first, second ... token was accepted. None
    without drafts, or where not all steps are known."""
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
    """Name -> values (seconds) at ``QUANTILES`` and their number; nothing where no value is defined."""
    found = {}
    for name, values in DISTRIBUTIONS.items():
        defined = values(table)
        defined = defined[~np.isnan(defined)]
        if len(defined):
            points = [float(f"{value:.4g}") for value in np.percentile(defined, QUANTILES)]
            found[name] = {"count": len(defined), "values": points}
    return found


def groups(table: Table) -> Kinds:
    """Kind of query -> figures over its queries, with intervals; empty if there is but one kind."""
    names, members = np.unique(np.array(table.groups, dtype=object).astype(str), return_inverse=True)
    if len(names) < 2:
        return {}
    return {str(name) or "other": _of_part(table, members == number) for number, name in enumerate(names)}


def categories(table: Table) -> Kinds:
    """As ``groups``, by the benchmarks' categories, such as MMLU's four; empty where these are no fewer."""
    kinds = np.array(table.groups, dtype=object).astype(str)
    present = set(kinds.tolist())
    sets = {name: present & members for name, members in benchmark_categories().items()}
    # A category that is wholly in another one, as MT-Bench's are in Spec-Bench's, says no more than its kind does.
    sets = {name: own for name, own in sets.items() if own and not any(own < other for other in sets.values())}
    sets |= {kind or "other": {kind} for kind in sorted(present - set().union(*sets.values()))}
    if not 1 < len(sets) < len(present):
        return {}
    return {name: _of_part(table, np.isin(kinds, list(members))) for name, members in sets.items()}


def _of_part(table: Table, chosen: NDArray[np.bool_]) -> dict[str, float | None]:
    """Figures over the chosen queries, with intervals."""
    known = {**all_columns(), **all_intervals()}
    part = table.part(np.flatnonzero(chosen))
    values = {name: rounded(known[name](part)) for metric in GROUPED for name in (metric, f"{metric} CI95")}
    return {"Queries": float(len(part)), **{name: plain(value) for name, value in values.items()}}


def described(mapping: Mapping[str, Any]) -> dict[str, str]:
    """A configuration flattened to texts, keys joined by dots; credentials within addresses are left out."""
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
