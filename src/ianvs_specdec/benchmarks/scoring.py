"""Scores of all queries of a test case at once: scorers that ask or run something do it for many queries at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ianvs_specdec.benchmarks.code import run_all
from ianvs_specdec.benchmarks.judge import judge_all
from ianvs_specdec.benchmarks.rows import row_of
from ianvs_specdec.benchmarks.scorers import scorer

Pairs = Sequence[tuple[Sequence[str], Any]]
"""Of each query the answers of all turns and the row's answer."""

TOGETHER: dict[str, Callable[[Pairs], list[float | None]]] = {"judge": judge_all, "code": run_all}
"""Scorers of many queries. Each gives what the scorer of the same name in ``SCORERS`` gives for one."""


def scores(results: Sequence[Mapping[str, Any]], golds: Sequence[Any]) -> list[float | None]:
    """The score of each result (see ``response``) by its own scorer; None where there is none, as for a query that was
    not answered.

    ``golds`` are the answers as the data file has them. Where a result knows its row, the dataset processor's version
    of the answer is taken: it holds the settings of the scorer. Raises UserError where a scorer cannot work at all.
    """
    found: list[float | None] = [None] * len(results)
    together: dict[str, list[int]] = {}
    pairs = []
    for index, (result, gold) in enumerate(zip(results, golds, strict=True)):
        row = row_of(result)
        answers = [turn["completion"] for turn in result.get("turns", ())]
        pairs.append((answers, row["gold"] if isinstance(row, Mapping) and "gold" in row else gold))
        if not answers or "error" in result:
            continue
        name = result.get("scorer", "none")
        if name in TOGETHER:
            together.setdefault(name, []).append(index)
        else:
            found[index] = scorer(name)(*pairs[-1])
    for name, indexes in together.items():
        for index, score in zip(indexes, TOGETHER[name]([pairs[index] for index in indexes]), strict=True):
            found[index] = score
    return found
