"""Both sides of each query: what the edge and the cloud model have answered, in whichever test case or in the journal.

Routing between two models can be worked out for the queries that both have answered.
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
"""Data file, and what determines the outputs of the edge and of the cloud (see ``side_key``)."""


@dataclass(frozen=True)
class SideAnswer:
    """One side's answers to all turns, their cost (None without prices) and score (0 to 100, or a judge's rating)."""

    texts: tuple[str, ...]
    cost: float | None = None
    score: float | None = None


def side_answer(response: Mapping[str, Any] | None) -> SideAnswer | None:
    """What a side has answered; None where it has not been asked, failed, only read the prompt, ended early, or is
    lossy on purpose."""
    if response is None or response.get("error") or response.get("lossy"):
        return None
    if response.get("stopped") or (response.get("prefill") and not response.get("turns")):
        return None
    return SideAnswer(tuple(turn["completion"] for turn in response.get("turns", ())), response.get("cost"))


def stored_answer(
    kept: JournalReader, query: Query, configurations: list[str], prices: Mapping[str, Any]
) -> SideAnswer | None:
    """What the journal has of a query in one of these configurations; None if it has not all turns."""
    found = kept.answers(query, configurations)
    if found is None:
        return None
    counts = (sum(getattr(answer, f"{name}_tokens") for answer in found) for name in ("prompt", "completion", "cached"))
    return SideAnswer(tuple(answer.text for answer in found), cost(prices, *counts))


def score(name: str, texts: Sequence[str], gold: Any) -> float | None:
    """The score (0 to 100) of answers to all turns; None for scorers that ask a judge, run programs or need
    probabilities."""
    if name == LOGPROB and not (texts and len(texts[-1]) <= 1):
        return None
    return scorer(name)(texts, gold) if texts and name in SCORERS and name not in BATCH_SCORERS else None


def side_key(case: Case, side: str) -> str:
    """What determines a side's outputs in a test case: model, quantization, sampling. Back ends and logprobs do not."""
    own = case.hyperparameters(side)
    names = [name for name in ("model", "quantization", *Sampling.names()) if name != "logprobs"]
    value = {name: own[name] for name in names if own.get(name) not in (None, "none")}
    return json.dumps(value, sort_keys=True, default=str) if "model" in value else ""


class PairedAnswers:
    """What all test cases and the journal hold, by data file, side, model and sampling, and query."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str], dict[int, SideAnswer]] = {}

    def add(
        self, case: Case, dataset: Dataset, rows: Mapping[int, Row], scores: Mapping[int, float | None] | None = None
    ) -> None:
        """Add both sides' answers of a test case. ``scores``: of each result, NaN where undefined. Rows of another data
        file are skipped."""
        for side in SIDES:
            known = self._of(case, side)
            for index, (_, result, edge, cloud) in rows.items():
                found = side_answer(edge if side == "edge" else cloud)
                if found is None or index in known or not _same(dataset, index, result, found):
                    continue
                told = scores.get(index) if scores and result.get("side") == side else None
                known[index] = SideAnswer(found.texts, found.cost, None if told is None or math.isnan(told) else told)

    def complete(self, cases: Iterable[Case], dataset: Dataset, kept: JournalReader) -> None:
        """Add from the journal what no test case holds, such as an oracle's answers. Rows with their own temperature
        are left out: the journal cannot distinguish them."""
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
        """Data file, edge and cloud of a test case; None where it does not have both."""
        edge, cloud = side_key(case, "edge"), side_key(case, "cloud")
        return (str(case.config.get("dataset") or ""), edge, cloud) if edge and cloud else None

    def both(self, pair: Pair) -> dict[int, tuple[SideAnswer, SideAnswer]]:
        """Per query: what the edge and the cloud answered, where both are known."""
        edge, cloud = (self._known.get((pair[0], side, pair[place]), {}) for place, side in enumerate(SIDES, 1))
        return {index: (edge[index], cloud[index]) for index in sorted(edge.keys() & cloud.keys())}

    def _of(self, case: Case, side: str) -> dict[int, SideAnswer]:
        return self._known.setdefault((str(case.config.get("dataset") or ""), side, side_key(case, side)), {})


def _same(dataset: Dataset, index: int, result: Mapping[str, Any], found: SideAnswer) -> bool:
    """Whether the data file has the query that was answered in this row, all of whose turns have an answer."""
    if index >= len(dataset.queries):
        return False
    query = dataset.queries[index]
    return result.get("query_id") in (None, query.id) and len(found.texts) == len(query.turns)


def scores_of(rows: Mapping[int, Row]) -> tuple[str, dict[int, float]]:
    """The router's name and its score for each query of a test case."""
    name, scores = "", {}
    for index, row in rows.items():
        decision = row[1].get("routing") or {}
        if isinstance(decision.get("score"), (int, float)):
            name, scores[index] = str(decision.get("router", "")), float(decision["score"])
    return name, scores
