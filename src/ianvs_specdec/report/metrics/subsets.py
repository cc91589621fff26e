"""Columns over a subset of the queries: a category or subject ("Accuracy: STEM"), a round ("Accuracy: round 2")."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ianvs_specdec.benchmarks.registry import categories
from ianvs_specdec.plugin.processor import ROUNDS
from ianvs_specdec.report.metrics.columns import ratio, sums_of
from ianvs_specdec.report.metrics.intervals import half_width
from ianvs_specdec.report.metrics.table import NAN, Column, Table

BY_CATEGORY = ("Accuracy", "Speedup", "Mean Accepted Tokens", "Throughput")
BY_ROUND = ("Accuracy", "Edge Ratio", "Cloud Cost", "Router AUROC", "Router APGR")
"""Metrics by category (``benchmarks.registry``) and by round (``plugin.processor``), with intervals."""

Metric = Callable[[Sequence[Any], Sequence[Any]], float]


def all_categories() -> dict[str, Callable[[Table], float]]:
    """The columns ``NAME: CATEGORY``, ``NAME: CATEGORY CI95`` and ``Accuracy: SUBJECT``."""
    found: dict[str, Callable[[Table], float]] = {}
    by_category = categories()
    for subject in sorted(frozenset[str]().union(*by_category.values())):
        found[f"Accuracy: {subject}"] = _in_groups(ratio, "Accuracy", frozenset({subject}))
    for category, groups in by_category.items():
        for name in BY_CATEGORY:
            found[f"{name}: {category}"] = _in_groups(ratio, name, groups)
            found[f"{name}: {category} CI95"] = _in_groups(half_width, name, groups)
    return found


def _in_groups(
    figure: Callable[[Column, Column], float], name: str, groups: frozenset[str]
) -> Callable[[Table], float]:
    def column(table: Table) -> float:
        part = table.part(np.flatnonzero([group in groups for group in table.groups]))
        return figure(*sums_of(name, part))

    return column


def all_rounds(metrics: Mapping[str, Metric]) -> dict[str, Metric]:
    """The columns ``NAME: round N`` and ``NAME: round N CI95``."""
    return {
        f"{name}: round {number}{interval}": _in_round(metrics[f"{name}{interval}"], number)
        for name in BY_ROUND
        for number in range(1, ROUNDS + 1)
        for interval in ("", " CI95")
    }


def _in_round(metric: Metric, number: int) -> Metric:
    def of_round(y_true: Sequence[Any], y_pred: Sequence[Any]) -> float:
        chosen = [index for index, row in enumerate(y_pred) if row[1].get("round") == number]
        if not chosen:
            return NAN
        return metric([y_true[index] for index in chosen], [y_pred[index] for index in chosen])

    return of_round
