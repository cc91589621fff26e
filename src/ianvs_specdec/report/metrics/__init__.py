"""The leaderboard's columns: one table from name to ``f(y_true, y_pred) -> float``. NaN = undefined = an empty cell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ianvs_specdec.report.metrics import unparsed
from ianvs_specdec.report.metrics.columns import all_columns, all_known
from ianvs_specdec.report.metrics.groups import all_groups
from ianvs_specdec.report.metrics.intervals import all_intervals
from ianvs_specdec.report.metrics.judge import all_turn_scores
from ianvs_specdec.report.metrics.rounds import all_rounds
from ianvs_specdec.report.metrics.routing import all_router_quality
from ianvs_specdec.report.metrics.table import Table, rounded
from ianvs_specdec.workspace import upstream

Metric = Callable[[Sequence[Any], Sequence[Any]], float]


def _metric(column: Callable[[Table], float]) -> Metric:
    def metric(y_true: Sequence[Any], y_pred: Sequence[Any]) -> float:
        upstream.keep(y_true, y_pred)
        return rounded(column(Table.of(y_true, y_pred)))

    return metric


_COLUMNS = {**all_columns(), **all_known(), **all_intervals(), **all_groups()}

METRICS: dict[str, Metric] = {
    **{name: _metric(column) for name, column in _COLUMNS.items()},
    **all_turn_scores(),
    **all_router_quality(),
}
"""Column name -> function. ``y_true`` holds the rows' answers, ``y_pred`` the rows' results in the layout of Ianvs,
``[is_hard, result, edge_result, cloud_result]``."""

METRICS |= all_rounds(METRICS)
METRICS["Accuracy"] = unparsed.telling(METRICS["Accuracy"])
for _name, _function in METRICS.items():
    _function.__name__ = _name
