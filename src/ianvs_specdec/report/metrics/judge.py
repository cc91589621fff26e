"""Judge ratings by turn, as MT-Bench reports them: columns "Turn 1 Score", "Turn 2 Score"."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ianvs_specdec.backends.judge import stored_ratings
from ianvs_specdec.benchmarks.judge_prompts import TURNS
from ianvs_specdec.report.metrics.columns import KNOWN, mean
from ianvs_specdec.report.metrics.table import NAN, Column, Table
from ianvs_specdec.workspace.scoring import answers_and_gold

TURN_SCORE = "Turn {} Score"


def all_turn_scores() -> dict[str, Callable[[Sequence[Any], Sequence[Any]], float]]:
    """Column name -> mean rating (1 to 10) of a turn, and ``... Known``: the number of ratings; NaN without a judge."""
    found = {}
    for turn in range(1, TURNS + 1):
        name = TURN_SCORE.format(turn)
        found[name] = _turn_score(turn, mean)
        found[name + KNOWN] = _turn_score(turn, _count)
    return found


def _count(ratings: Column) -> float:
    return float(np.isfinite(ratings).sum()) if len(ratings) else NAN


def _turn_score(turn: int, statistic: Callable[[Column], float]) -> Callable[[Sequence[Any], Sequence[Any]], float]:
    def turn_score(y_true: Sequence[Any], y_pred: Sequence[Any]) -> float:
        # Building the table has the answers judged.
        Table.of(y_true, y_pred)
        judged = [(row[1], gold) for row, gold in zip(y_pred, y_true, strict=True) if row[1].get("scorer") == "judge"]
        ratings = stored_ratings([answers_and_gold(*pair) for pair in judged])
        found = [turns[turn - 1] for turns in ratings if len(turns) >= turn]
        return statistic(np.array([NAN if rating is None else rating for rating in found], dtype=np.float64))

    return turn_score
