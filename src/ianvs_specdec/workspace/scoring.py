"""Scores of all queries of a test case at once: scorers that ask or run something do it for many queries at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ianvs_specdec.backends.judge import Pairs, judge, judge_all
from ianvs_specdec.benchmarks.code import run_all
from ianvs_specdec.benchmarks.rows import normalize_row, row_of
from ianvs_specdec.benchmarks.scorers import references_of
from ianvs_specdec.benchmarks.scorers import scorer as local_scorer

BATCH_SCORERS: dict[str, Callable[[Pairs], list[float | None]]] = {"judge": judge_all, "code": run_all}
"""Scorers of many queries. Each gives what the scorer of the same name in ``SCORERS`` gives for one."""


def scorer(name: str) -> Callable[[Sequence[str], Any], float | None]:
    """``benchmarks.scorers.scorer``, and the judge, who rates from 1 to 10."""
    return judge if name == "judge" else local_scorer(name)


def scores(results: Sequence[Mapping[str, Any]], golds: Sequence[Any]) -> list[float | None]:
    """The score of each result by its own scorer; None where there is none. A query without a whole answer has the
    score of empty answers, and no judge's. ``golds``: the answers in the data file; those of the dataset processor,
    with the settings of scorers, come first. Raises UserError where a scorer cannot work."""
    found: list[float | None] = [None] * len(results)
    together: dict[str, list[tuple[int, Sequence[str], Any]]] = {}
    for index, (result, gold) in enumerate(zip(results, golds, strict=True)):
        answers, gold = answers_and_gold(result, gold)
        name = result.get("scorer", "none")
        if result.get("error"):
            found[index] = None if name == "judge" else scorer(name)([""] * max(1, len(references_of(gold))), gold)
        elif answers and name in BATCH_SCORERS:
            together.setdefault(name, []).append((index, answers, gold))
        elif answers:
            found[index] = scorer(name)(answers, gold)
    for name, queries in together.items():
        values = BATCH_SCORERS[name]([(answers, gold) for _, answers, gold in queries])
        for (index, _, _), value in zip(queries, values, strict=True):
            found[index] = value
    return found


def answers_and_gold(result: Mapping[str, Any], gold: Any) -> tuple[list[str], Any]:
    """The answers of a result, and the row's answer: the dataset processor's, where the result knows its row."""
    row = row_of(result)
    answers = [turn["completion"] for turn in result.get("turns", ())]
    if isinstance(row, Mapping) and "question" in row:
        return answers, normalize_row(row, gold)[1]
    return answers, row["gold"] if isinstance(row, Mapping) and "gold" in row else gold
