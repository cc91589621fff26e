"""Columns of one kind of question: "Accuracy: STEM", "Speedup: translation".

The kinds are the benchmarks' categories (``benchmarks.registry``), and for Accuracy every single subject, too. A column
is computed from the queries of its kind as the plain column is from all of them; without any it is undefined.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ianvs_specdec.benchmarks.registry import categories
from ianvs_specdec.report.metrics.columns import ratio, sums_of
from ianvs_specdec.report.metrics.intervals import half_width
from ianvs_specdec.report.metrics.table import Table

BY_CATEGORY = ("Accuracy", "Speedup", "Mean Accepted Tokens", "Throughput")
"""Metrics by category, with interval."""

BY_SUBJECT = "Accuracy"


def all_groups() -> dict[str, Callable[[Table], float]]:
    """Every column of a category, ``NAME: CATEGORY`` and ``NAME: CATEGORY CI95``, and ``Accuracy: SUBJECT``."""
    found: dict[str, Callable[[Table], float]] = {}
    by_category = categories()
    for subject in sorted(frozenset[str]().union(*by_category.values())):
        found[f"{BY_SUBJECT}: {subject}"] = _value(BY_SUBJECT, frozenset({subject}))
    for category, groups in by_category.items():
        for name in BY_CATEGORY:
            found[f"{name}: {category}"] = _value(name, groups)
            found[f"{name}: {category} CI95"] = _interval(name, groups)
    return found


def _part(table: Table, groups: frozenset[str]) -> Table:
    return table.part(np.flatnonzero([group in groups for group in table.groups]))


def _value(name: str, groups: frozenset[str]) -> Callable[[Table], float]:
    return lambda table: ratio(*sums_of(name, _part(table, groups)))


def _interval(name: str, groups: frozenset[str]) -> Callable[[Table], float]:
    return lambda table: half_width(*sums_of(name, _part(table, groups)))
