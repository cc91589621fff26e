"""How good the router's scores are: "Router AUROC", "Router APGR", and half the width of their intervals.

They need the answer of the other side to each query: from the row, where both answered, or from the job's journal. Of
some queries only, chosen by the router itself, they would be wrong: unless it is known of all that got an answer, they
are undefined.
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
from ianvs_specdec.routing.evaluation.curve import Sides
from ianvs_specdec.routing.evaluation.quality import Scored
from ianvs_specdec.routing.evaluation.results import evaluate
from ianvs_specdec.workspace.journal_reader import JournalReader
from ianvs_specdec.workspace.scoring import answers_and_gold
from ianvs_specdec.workspace.sides import SIDES, score, side_answer, stored_answer

NAMES = {"Router AUROC": "auroc", "Router APGR": "apgr"}

ALIKE = "the router gave all queries the same score"

Kept = Callable[[], JournalReader]
"""The job's journal, read when it is first called."""

_known: weakref.WeakKeyDictionary[Table, Mapping[str, float]] = weakref.WeakKeyDictionary()


def all_router_quality() -> dict[str, Callable[[Sequence[Any], Sequence[Any]], float]]:
    """Column name -> metric; the columns ``... CI95`` hold half the width of the 95 % interval over queries."""
    return {name: _column(name) for metric in NAMES for name in (metric, f"{metric} CI95")}


def _column(name: str) -> Callable[[Sequence[Any], Sequence[Any]], float]:
    def router_quality(y_true: Sequence[Any], y_pred: Sequence[Any]) -> float:
        table = Table.of(y_true, y_pred)
        if table not in _known:
            _known[table] = _measure(y_true, y_pred, table)
        return rounded(_known[table].get(name, NAN))

    return router_quality


def _measure(y_true: Sequence[Any], y_pred: Sequence[Any], table: Table) -> dict[str, float]:
    compared = _compared(y_true, y_pred, table)
    if isinstance(compared, str):
        if compared != ALIKE:
            warn_once(f"{' and '.join(NAMES)} are empty: {compared}")
        return {}
    found = evaluate(*compared, resamples=RESAMPLES, seed=SEED).results[-1].metrics
    values: dict[str, float] = {}
    for name, metric in NAMES.items():
        if metric in found:
            values |= {name: found[metric].value, f"{name} CI95": (found[metric].high - found[metric].low) / 2}
    return values


def why_empty(y_true: Sequence[Any], y_pred: Sequence[Any], table: Table) -> str:
    """Why the columns of the router's quality are empty, where they are."""
    compared = _compared(y_true, y_pred, table)
    return compared if isinstance(compared, str) else "both models do equally well on these queries"


def _compared(y_true: Sequence[Any], y_pred: Sequence[Any], table: Table) -> tuple[Sides, list[Scored]] | str:
    """Both sides' outcomes and the router's scores of the queries; or the reason why they are unknown."""
    answered = [index for index, row in enumerate(y_pred) if not row[1].get("error")]
    scores = np.array([_score(y_pred[index][1]) for index in answered])
    if not len(scores) or np.isnan(scores).any():
        return "the router gave no score to some queries"
    if np.ptp(scores) == 0:
        return ALIKE
    kept = functools.cache(lambda: JournalReader(job_folder()))
    sides = []
    for side in SIDES:
        outcomes = _outcomes(side, y_true, y_pred, answered, table.query("score"), kept)
        if np.isnan(outcomes).any():
            if not any(_asked(row, side) for row in y_pred):
                return (
                    f"no query went to the {side} model, so its answers in other test cases cannot be told to be of "
                    "the same settings; choose a threshold at which both sides are asked"
                )
            return (
                f"the {side} model's answer is known for {int(np.isfinite(outcomes).sum())} of "
                f"{len(outcomes)} only; put {side.capitalize()}Only or OracleRouter before this router in the job"
            )
        sides.append(outcomes / 100.0)
    return Sides(*sides), [Scored("router", scores)]


def _score(result: Mapping[str, Any]) -> float:
    score = (result.get("routing") or {}).get("score")
    return float(score) if isinstance(score, (int, float)) else NAN


def _outcomes(
    side: str, y_true: Sequence[Any], y_pred: Sequence[Any], rows: Sequence[int], scored: Column, kept: Kept
) -> Column:
    """The side's scores on these rows, NaN where they are not known."""
    column = np.full(len(rows), NAN)
    configurations: list[str] | None = None
    for number, index in enumerate(rows):
        result = y_pred[index][1]
        if result.get("side") == side:
            column[number] = scored[index]
            continue
        found = side_answer(_answer(y_pred[index], side))
        # Results that do not know their row cannot be looked up.
        if found is None and row_of(result) is not result and row_of(result) is not None:
            if configurations is None:
                configurations = _configurations(side, y_pred, kept)
            found = stored_answer(kept(), query_of_row(result), configurations, {}) if configurations else None
        told = None
        if found is not None:
            told = score(str(result.get("scorer")), found.texts, answers_and_gold(result, y_true[index])[1])
        column[number] = NAN if told is None else told
    return column


def _asked(row: Sequence[Any], side: str) -> bool:
    return row[1].get("side") == side or _answer(row, side) is not None


def _answer(row: Sequence[Any], side: str) -> Mapping[str, Any] | None:
    """The side's answer in this row, if there is one."""
    _, result, edge, cloud = row
    found: Mapping[str, Any] | None = edge_answer_of(result, edge) if side == "edge" else cloud
    return found


def _configurations(side: str, y_pred: Sequence[Any], kept: Kept) -> list[str]:
    """The journal's configurations that answer as this side's model does, by an answer of it in the test case."""
    for row in y_pred:
        response = row[1] if row[1].get("side") == side else _answer(row, side)
        # An answer that ended early was asked for in another way.
        if (response or {}).get("stopped"):
            continue
        for turn in (response or {}).get("turns", ()):
            if turn.get("key"):
                return _alike(kept, str(turn["key"]))
    return []


def _alike(kept: Kept, key: str) -> list[str]:
    try:
        return kept().same_outputs(key)
    except UserError:
        # Outside a running job there is no journal.
        return []
