"""Answers of the edge and the cloud model to each query, from all test cases and the journal.

Routing can be computed for the queries that both models have answered.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ianvs_specdec.benchmarks.scorers import LOGPROB, SCORERS, scorer
from ianvs_specdec.common.types import Query, Sampling
from ianvs_specdec.records.cost import cost
from ianvs_specdec.workspace.cases import Case, Dataset, Row
from ianvs_specdec.workspace.journal_reader import JournalReader
from ianvs_specdec.workspace.scoring import BATCH_SCORERS

SIDES = ("edge", "cloud")

Pair = tuple[str, str, str]
"""Data file, and the keys of the edge and of the cloud (see ``side_key``)."""


@dataclass(frozen=True)
class SideAnswer:
    """A side's answers to all turns, their cost (None without prices) and score (0 to 100, or a judge's rating)."""

    texts: tuple[str, ...]
    cost: float | None = None
    score: float | None = None


def side_answer(response: Mapping[str, Any] | None) -> SideAnswer | None:
    """The answer in a side's response; None for no response, an error, a prefill only, an early exit, or a lossy
    one."""
    if response is None or response.get("error") or response.get("lossy"):
        return None
    if response.get("stopped") or (response.get("prefill") and not response.get("turns")):
        return None
    return SideAnswer(tuple(turn["completion"] for turn in response.get("turns", ())), response.get("cost"))


def stored_answer(
    kept: JournalReader, query: Query, configurations: list[str], prices: Mapping[str, Any]
) -> SideAnswer | None:
    """The journal's answers to all turns of a query in one of these configurations, else None."""
    found = kept.answers(query, configurations)
    if found is None:
        return None
    counts = (sum(getattr(answer, f"{name}_tokens") for answer in found) for name in ("prompt", "completion", "cached"))
    return SideAnswer(tuple(answer.text for answer in found), cost(prices, *counts))


def score(name: str, texts: Sequence[str], gold: Any) -> float | None:
    """The score (0 to 100) of answers to all turns; None for scorers that need a judge, programs or probabilities."""
    if name == LOGPROB and not (texts and len(texts[-1]) <= 1):
        return None
    return scorer(name)(texts, gold) if texts and name in SCORERS and name not in BATCH_SCORERS else None


def side_key(case: Case, side: str) -> str:
    """Settings that determine a side's output, as JSON: model, quantization, sampling (not back end and logprobs)."""
    own = case.hyperparameters(side)
    names = [name for name in ("model", "quantization", *Sampling.names()) if name != "logprobs"]
    value = {name: own[name] for name in names if own.get(name) not in (None, "none")}
    return json.dumps(value, sort_keys=True, default=str) if "model" in value else ""


class PairedAnswers:
    """Answers of all test cases and the journal, by data file, side, settings and query."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str], dict[int, SideAnswer]] = {}

    def add(
        self, case: Case, dataset: Dataset, rows: Mapping[int, Row], scores: Mapping[int, float | None] | None = None
    ) -> set[int]:
        """Add both sides' answers of a test case. ``scores``: by row, NaN = undefined. Returns the skipped rows:
        the data file has other queries there."""
        skipped = set[int]()
        for side in SIDES:
            known = self._of(case, side)
            for index, (_, result, edge, cloud) in rows.items():
                found = side_answer(edge if side == "edge" else cloud)
                if found is None or index in known:
                    continue
                if not _same(dataset, index, result, found):
                    skipped.add(index)
                    continue
                value = scores.get(index) if scores and result.get("side") == side else None
                rating = None if value is None or math.isnan(value) else value
                known[index] = SideAnswer(found.texts, found.cost, rating)
        return skipped

    def complete(self, cases: Iterable[Case], dataset: Dataset, kept: JournalReader) -> None:
        """Add answers from the journal that no test case has, such as an oracle's. Rows with their own temperature are
        left out: the journal cannot distinguish them."""
        for case in cases:
            for side in SIDES:
                own, known = case.hyperparameters(side), self._of(case, side)
                missing = [index for index in range(len(dataset.queries)) if index not in known]
                configurations = kept.configurations(own) if missing else []
                for index in missing if configurations else ():
                    query = dataset.queries[index]
                    found = stored_answer(kept, query, configurations, own) if query.temperature is None else None
                    if found is not None:
                        known[index] = found

    def pair(self, case: Case) -> Pair | None:
        """Data file, edge and cloud of a test case; None without both."""
        edge, cloud = side_key(case, "edge"), side_key(case, "cloud")
        return (str(case.config.get("dataset") or ""), edge, cloud) if edge and cloud else None

    def both(self, pair: Pair) -> dict[int, tuple[SideAnswer, SideAnswer]]:
        """The answers of edge and cloud by query, where both are known."""
        edge, cloud = (self._known.get((pair[0], side, pair[place]), {}) for place, side in enumerate(SIDES, 1))
        return {index: (edge[index], cloud[index]) for index in sorted(edge.keys() & cloud.keys())}

    def _of(self, case: Case, side: str) -> dict[int, SideAnswer]:
        return self._known.setdefault((str(case.config.get("dataset") or ""), side, side_key(case, side)), {})


def _same(dataset: Dataset, index: int, result: Mapping[str, Any], found: SideAnswer) -> bool:
    """Whether this row of the data file is the answered query, with an answer to each turn."""
    if index >= len(dataset.queries):
        return False
    query = dataset.queries[index]
    return result.get("query_id") in (None, query.id) and len(found.texts) == len(query.turns)


def scores_of(rows: Mapping[int, Row]) -> tuple[str, dict[int, float]]:
    """The router's name, and its score by query."""
    name, scores = "", {}
    for index, row in rows.items():
        decision = row[1].get("routing") or {}
        if isinstance(decision.get("score"), (int, float)):
            name, scores[index] = str(decision.get("router", "")), float(decision["score"])
    return name, scores
