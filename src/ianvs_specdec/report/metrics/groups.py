"""Columns of one kind of question: "Accuracy: STEM", "Speedup: translation". The kinds are the benchmarks' categories
(``benchmarks.registry``), and for Accuracy every subject."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ianvs_specdec.benchmarks.registry import categories
from ianvs_specdec.report.metrics.columns import ratio, sums_of
from ianvs_specdec.report.metrics.intervals import half_width
from ianvs_specdec.report.metrics.table import Column, Table

BY_CATEGORY = ("Accuracy", "Speedup", "Mean Accepted Tokens", "Throughput")
"""Metrics by category, with interval."""


def all_groups() -> dict[str, Callable[[Table], float]]:
    """Every column of a category, ``NAME: CATEGORY`` and ``NAME: CATEGORY CI95``, and ``Accuracy: SUBJECT``."""
    found: dict[str, Callable[[Table], float]] = {}
    by_category = categories()
    for subject in sorted(frozenset[str]().union(*by_category.values())):
        found[f"Accuracy: {subject}"] = _of(ratio, "Accuracy", frozenset({subject}))
    for category, groups in by_category.items():
        for name in BY_CATEGORY:
            found[f"{name}: {category}"] = _of(ratio, name, groups)
            found[f"{name}: {category} CI95"] = _of(half_width, name, groups)
    return found


def _of(figure: Callable[[Column, Column], float], name: str, groups: frozenset[str]) -> Callable[[Table], float]:
    def column(table: Table) -> float:
        part = table.part(np.flatnonzero([group in groups for group in table.groups]))
        return figure(*sums_of(name, part))

    return column
