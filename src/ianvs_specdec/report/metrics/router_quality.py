"""Quality of the router's scores: columns "Router AUROC", "Router APGR", and half the width of their intervals.

They need both sides' answers to every answered query, from the row or the job's journal, and are undefined otherwise:
the router itself selected which side answered, so a part of the queries would be biased.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ianvs_specdec.benchmarks.rows import query_of_row, row_of
from ianvs_specdec.common.errors import UserError, warn_once
from ianvs_specdec.records.response import edge_answer_of
from ianvs_specdec.records.run import job_folder
from ianvs_specdec.report.metrics.table import NAN, Column, Table, rounded
from ianvs_specdec.routing.evaluation.bootstrap import RESAMPLES, SEED
from ianvs_specdec.routing.evaluation.metrics import RouterScores
from ianvs_specdec.routing.evaluation.results import evaluate
from ianvs_specdec.routing.outcomes.recorded import Sides
from ianvs_specdec.workspace.journal_reader import JournalReader
from ianvs_specdec.workspace.scoring import answers_and_gold
from ianvs_specdec.workspace.sides import SIDES, score, side_answer, stored_answer

NAMES = {"Router AUROC": "auroc", "Router APGR": "apgr"}

CONSTANT = "the router gave all queries the same score"

Journal = Callable[[], JournalReader]
"""Reads the job's journal on the first call."""

_cache: weakref.WeakKeyDictionary[Table, Mapping[str, float]] = weakref.WeakKeyDictionary()


def all_router_quality() -> dict[str, Callable[[Sequence[Any], Sequence[Any]], float]]:
    """Column name -> metric; ``... CI95`` is half the width of the 95 % interval over queries."""
    return {name: _column(name) for metric in NAMES for name in (metric, f"{metric} CI95")}


def _column(name: str) -> Callable[[Sequence[Any], Sequence[Any]], float]:
    def router_quality(y_true: Sequence[Any], y_pred: Sequence[Any]) -> float:
        table = Table.of(y_true, y_pred)
        if table not in _cache:
            _cache[table] = _measure(y_true, y_pred, table)
        return rounded(_cache[table].get(name, NAN))

    return router_quality


def _measure(y_true: Sequence[Any], y_pred: Sequence[Any], table: Table) -> dict[str, float]:
    compared = _compared(y_true, y_pred, table)
    if isinstance(compared, str):
        if compared != CONSTANT:
            warn_once(f"{' and '.join(NAMES)} are empty: {compared}")
        return {}
    found = evaluate(*compared, resamples=RESAMPLES, seed=SEED).results[-1].metrics
    values: dict[str, float] = {}
    for name, metric in NAMES.items():
        if metric in found:
            values |= {name: found[metric].value, f"{name} CI95": (found[metric].high - found[metric].low) / 2}
    return values


def why_empty(y_true: Sequence[Any], y_pred: Sequence[Any], table: Table) -> str:
    """Reason why the columns are empty."""
    compared = _compared(y_true, y_pred, table)
    return compared if isinstance(compared, str) else "both models do equally well on these queries"


def _compared(y_true: Sequence[Any], y_pred: Sequence[Any], table: Table) -> tuple[Sides, list[RouterScores]] | str:
    """Both sides' outcomes and the router's scores, or the reason why they are unknown."""
    side_answer = [index for index, row in enumerate(y_pred) if not row[1].get("error")]
    scores = np.array([_score(y_pred[index][1]) for index in side_answer])
    if not len(scores) or np.isnan(scores).any():
        return "the router gave no score to some queries"
    if np.ptp(scores) == 0:
        return CONSTANT
    journal = functools.cache(lambda: JournalReader(job_folder()))
    sides = []
    for side in SIDES:
        outcomes = _outcomes(side, y_true, y_pred, side_answer, table.query("score"), journal)
        if np.isnan(outcomes).any():
            if not any(row[1].get("side") == side or _answer(row, side) is not None for row in y_pred):
                return (
                    f"no query went to the {side} model, so its settings are unknown and its answers in other test "
                    "cases cannot be matched; choose a threshold at which both sides are used"
                )
            return (
                f"the {side} model's answer is known for {int(np.isfinite(outcomes).sum())} of "
                f"{len(outcomes)} only; put {side.capitalize()}Only or OracleRouter before this router in the job"
            )
        sides.append(outcomes / 100.0)
    return Sides(*sides), [RouterScores("router", scores)]


def _score(result: Mapping[str, Any]) -> float:
    score = (result.get("routing") or {}).get("score")
    return float(score) if isinstance(score, (int, float)) else NAN


def _outcomes(
    side: str, y_true: Sequence[Any], y_pred: Sequence[Any], rows: Sequence[int], scored: Column, journal: Journal
) -> Column:
    """The side's scores on these rows; NaN if unknown."""
    column = np.full(len(rows), NAN)
    configurations: list[str] | None = None
    for number, index in enumerate(rows):
        result = y_pred[index][1]
        if result.get("side") == side:
            column[number] = scored[index]
            continue
        found = side_answer(_answer(y_pred[index], side))
        # Without its row, a result cannot be looked up.
        if found is None and row_of(result) is not result and row_of(result) is not None:
            if configurations is None:
                configurations = _configurations(side, y_pred, journal)
            found = stored_answer(journal(), query_of_row(result), configurations, {}) if configurations else None
        if found is not None:
            value = score(str(result.get("scorer")), found.texts, answers_and_gold(result, y_true[index])[1])
            column[number] = NAN if value is None else value
    return column


def _answer(row: Sequence[Any], side: str) -> Mapping[str, Any] | None:
    _, result, edge, cloud = row
    found: Mapping[str, Any] | None = edge_answer_of(result, edge) if side == "edge" else cloud
    return found


def _configurations(side: str, y_pred: Sequence[Any], journal: Journal) -> list[str]:
    """The journal's configurations equivalent to that of this side's model, found by one of its answers; none outside a
    running job."""
    for row in y_pred:
        response = row[1] if row[1].get("side") == side else _answer(row, side)
        # Answers that ended early have another configuration.
        if (response or {}).get("stopped"):
            continue
        for turn in (response or {}).get("turns", ()):
            if turn.get("key"):
                try:
                    return journal().same_outputs(str(turn["key"]))
                except UserError:
                    return []
    return []
