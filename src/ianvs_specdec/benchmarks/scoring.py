"""Scores of all queries of a test case at once: scorers that ask or run something do it for many queries at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ianvs_specdec.benchmarks.code import run_all
from ianvs_specdec.benchmarks.judge import judge_all
from ianvs_specdec.benchmarks.rows import row_of
from ianvs_specdec.benchmarks.scorers import references_of, scorer

Pairs = Sequence[tuple[Sequence[str], Any]]
"""Of each query the answers of all turns and the row's answer."""

TOGETHER: dict[str, Callable[[Pairs], list[float | None]]] = {"judge": judge_all, "code": run_all}
"""Scorers of many queries. Each gives what the scorer of the same name in ``SCORERS`` gives for one."""


def scores(results: Sequence[Mapping[str, Any]], golds: Sequence[Any]) -> list[float | None]:
    """The score of each result (see ``response``) by its own scorer; None where there is none.

    A query that got no whole answer has the score of empty answers; a judge is not bothered with it. ``golds`` are the
    rows' answers as the data file has them. Where a result knows its row, the dataset processor's version is taken: it
    holds the settings of the scorer. Raises UserError where a scorer cannot work at all.
    """
    found: list[float | None] = [None] * len(results)
    together: dict[str, list[tuple[int, Sequence[str], Any]]] = {}
    for index, (result, gold) in enumerate(zip(results, golds, strict=True)):
        row = row_of(result)
        if isinstance(row, Mapping) and "gold" in row:
            gold = row["gold"]
        name = result.get("scorer", "none")
        answers = [turn["completion"] for turn in result.get("turns", ())]
        if result.get("error"):
            found[index] = None if name == "judge" else scorer(name)([""] * max(1, len(references_of(gold))), gold)
        elif answers and name in TOGETHER:
            together.setdefault(name, []).append((index, answers, gold))
        elif answers:
            found[index] = scorer(name)(answers, gold)
    for name, queries in together.items():
        values = TOGETHER[name]([(answers, gold) for _, answers, gold in queries])
        for (index, _, _), value in zip(queries, values, strict=True):
            found[index] = value
    return found
