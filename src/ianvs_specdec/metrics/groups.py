"""Columns of one kind of question: "Accuracy: STEM", "Speedup: translation".

The kinds are the benchmarks' categories (``benchmarks.registry``), and for Accuracy every single subject, too. A column
is computed from the queries of its kind as the plain column is from all of them; without any it is undefined.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ianvs_specdec.benchmarks.registry import categories
from ianvs_specdec.metrics.columns import MEANS, RATIOS, ratio
from ianvs_specdec.metrics.intervals import half_width
from ianvs_specdec.metrics.table import NAN, Column, Table

BY_CATEGORY = ("Accuracy", "Speedup", "Mean Accepted Tokens", "Throughput")
"""What there is by category, with interval."""

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


def _members(table: Table, groups: frozenset[str]) -> NDArray[np.bool_]:
    return np.array([group in groups for group in table.groups], dtype=bool)


def _columns(name: str, table: Table) -> tuple[Column, Column]:
    """Numerator and denominator of the column; a mean is a ratio to ones."""
    if name in RATIOS:
        return RATIOS[name](table)
    values = MEANS[name](table)
    return values, np.ones_like(values)


def _value(name: str, groups: frozenset[str]) -> Callable[[Table], float]:
    def value(table: Table) -> float:
        numerator, denominator = _columns(name, table)
        return ratio(np.where(_members(table, groups), numerator, NAN), denominator)

    return value


def _interval(name: str, groups: frozenset[str]) -> Callable[[Table], float]:
    def interval(table: Table) -> float:
        numerator, denominator = _columns(name, table)
        return half_width(np.where(_members(table, groups), numerator, NAN), denominator)

    return interval
