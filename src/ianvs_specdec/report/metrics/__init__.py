"""The leaderboard's columns: one table from name to ``f(y_true, y_pred) -> float``. NaN = undefined = an empty cell."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ianvs_specdec.common.errors import warn_once
from ianvs_specdec.report.metrics.columns import all_columns, all_known, chance_level, mean
from ianvs_specdec.report.metrics.intervals import all_intervals
from ianvs_specdec.report.metrics.judge import all_turn_scores
from ianvs_specdec.report.metrics.router_quality import all_router_quality
from ianvs_specdec.report.metrics.subsets import Metric, all_categories, all_rounds
from ianvs_specdec.report.metrics.table import Table, rounded
from ianvs_specdec.workspace import upstream

MANY_UNPARSED = 0.1
"""Share of unparsed answers at which Accuracy warns."""


def _metric(column: Callable[[Table], float]) -> Metric:
    def metric(y_true: Sequence[Any], y_pred: Sequence[Any]) -> float:
        upstream.keep(y_true, y_pred)
        return rounded(column(Table.of(y_true, y_pred)))

    return metric


def _warning_of_unparsed(accuracy: Metric) -> Metric:
    @functools.wraps(accuracy)
    def metric(y_true: Sequence[Any], y_pred: Sequence[Any]) -> float:
        _warn_unparsed(Table.of(y_true, y_pred))
        return accuracy(y_true, y_pred)

    return metric


def _warn_unparsed(table: Table) -> None:
    """Warn if many answers hold no letter or number. Raises UserError if there are no scores."""
    unparsed = table.query("unparsed")
    count, total = int(np.nansum(unparsed)), int(np.isfinite(unparsed).sum())
    if not total or count < MANY_UNPARSED * total:
        return
    chance = chance_level(table)
    guessing = "" if math.isnan(chance) else f"; guessing gives {chance:.1f}"
    warn_once(
        f"{count} of {total} answers hold no letter or number that could be read, and count as wrong: Accuracy is "
        f"{mean(table.query('score')):.1f}{guessing}. Worked examples in the prompt or a chat template may help"
    )


_COLUMNS = {**all_columns(), **all_known(), **all_intervals(), **all_categories()}

METRICS: dict[str, Metric] = {
    **{name: _metric(column) for name, column in _COLUMNS.items()},
    **all_turn_scores(),
    **all_router_quality(),
}
"""Column name -> function. ``y_true`` holds the rows' answers, ``y_pred`` the rows' results in the layout of Ianvs,
``[is_hard, result, edge_result, cloud_result]``."""

METRICS |= all_rounds(METRICS)
METRICS["Accuracy"] = _warning_of_unparsed(METRICS["Accuracy"])
for _name, _function in METRICS.items():
    _function.__name__ = _name
