"""Columns by round: "Accuracy: round 2" is Accuracy of the rows that the dataset processor has put into round 2."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ianvs_specdec.plugin.processor import ROUNDS
from ianvs_specdec.report.metrics.table import NAN

BY_ROUND = ("Accuracy", "Edge Ratio", "Cloud Cost", "Router AUROC", "Router APGR")
"""Metrics by round, with interval."""

Metric = Callable[[Sequence[Any], Sequence[Any]], float]


def all_rounds(metrics: Mapping[str, Metric]) -> dict[str, Metric]:
    """``NAME: round N`` and ``NAME: round N CI95`` of those among ``metrics``."""
    return {
        f"{name}: round {number}{interval}": _in_round(metrics[f"{name}{interval}"], number)
        for name in BY_ROUND
        for number in range(1, ROUNDS + 1)
        for interval in ("", " CI95")
        if f"{name}{interval}" in metrics
    }


def _in_round(metric: Metric, number: int) -> Metric:
    def of_round(y_true: Sequence[Any], y_pred: Sequence[Any]) -> float:
        chosen = [index for index, row in enumerate(y_pred) if row[1].get("round") == number]
        if not chosen:
            return NAN
        return metric([y_true[index] for index in chosen], [y_pred[index] for index in chosen])

    return of_round
