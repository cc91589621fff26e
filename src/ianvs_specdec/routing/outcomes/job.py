"""Outcomes of a finished Ianvs job, from the answers of both models in all its test cases."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ianvs_specdec.benchmarks import code
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Query
from ianvs_specdec.routing.outcomes.quality import (
    Answers,
    BenchmarkQuality,
    Quality,
    Scores,
    outcomes_of_answers,
    share,
)
from ianvs_specdec.routing.outcomes.recorded import Outcomes
from ianvs_specdec.workspace.cases import Case, Dataset, Workspace, read_workspace
from ianvs_specdec.workspace.judgments import JudgedQuery, mean_rating, read_judgments
from ianvs_specdec.workspace.sides import SIDES, Pair, PairedAnswers, SideAnswer

log = logging.getLogger(__name__)

Both = Mapping[int, tuple[SideAnswer, SideAnswer]]
"""Answers of the edge and the cloud, by the row number in the data file."""


def outcomes_of_job(folder: Path, quality: Quality | None = None, algorithm: str | None = None) -> Outcomes:
    """The outcomes of the queries that both models of the job in ``folder`` have answered.

    ``quality``: default the benchmark's scorer, with the judge's ratings from the job's journal; ``algorithm``: selects
    one of several pairs of models or data files. Call it in the folder in which ``ianvs`` was run. Raises UserError
    unless there is exactly one pair.
    """
    workspace = read_workspace(folder)
    if len(workspace.jobs) > 1:
        raise UserError(f"{folder} holds several jobs ({', '.join(workspace.jobs)}): give the folder of one of them")
    sides, pairs = PairedAnswers(), dict[Pair, list[Case]]()
    for case in workspace.cases:
        if (pair := sides.pair(case)) is not None and algorithm in (None, case.algorithm):
            pairs.setdefault(pair, []).append(case)
    found: list[tuple[list[Case], Dataset, Both]] = []
    for pair, cases in pairs.items():
        dataset = workspace.dataset(pair[0])
        if dataset is None:
            continue
        if skipped := set[int]().union(*(sides.add(case, dataset, case.answers()) for case in cases)):
            log.warning(
                "%s does not have the rows that the job answered: rows left out: %d. Restore the file as it was at the "
                "run, or start this command in the folder in which ianvs was run",
                *(pair[0], len(skipped)),
            )
        sides.complete(cases, dataset, workspace.journal(cases[0].job))
        if both := sides.both(pair):
            found.append((cases, dataset, both))
    if not found:
        raise UserError(_nothing(folder, workspace, algorithm))
    if len(found) > 1:
        choices = ", ".join(dict.fromkeys(case.algorithm for cases, *_ in found for case in cases))
        advice = "name one of its algorithms" if algorithm is None else "its hyperparameters have several values"
        raise UserError(f"{folder} holds several pairs of models or data files ({choices}): {advice}")
    return _outcomes(*found[0], quality or BenchmarkQuality(), workspace)


def _nothing(folder: Path, workspace: Workspace, algorithm: str | None) -> str:
    names = list(dict.fromkeys(case.algorithm for case in workspace.cases))
    if algorithm is not None and algorithm not in names:
        return f"{folder} holds no algorithm {algorithm}; it holds: {', '.join(names)}"
    reasons = "; ".join(dict.fromkeys(workspace.notes))
    advice = "run OracleRouter, or EdgeOnly and CloudOnly, in it"
    return f"{folder} holds no query that both an edge and a cloud model have answered: {reasons or advice}"


def _outcomes(cases: list[Case], dataset: Dataset, both: Both, quality: Quality, workspace: Workspace) -> Outcomes:
    queries = [dataset.queries[index] for index in both]
    golds = [_gold(dataset.queries[index], dataset.golds[index], cases[0]) for index in both]
    if isinstance(quality, BenchmarkQuality):
        quality = _JournalRatings(cases[0], workspace)
    else:
        for index, query, gold in zip(both, queries, golds, strict=True):
            quality.check(query, gold, f"row {index + 1} of {cases[0].config.get('dataset')}")
    answers = {side: [[(pair[i].texts, pair[i].cost)] for pair in both.values()] for i, side in enumerate(SIDES)}
    outcomes = outcomes_of_answers(queries, golds, answers, quality)
    if not len(outcomes):
        raise UserError(f"{workspace.folder} holds no score for any of {len(both)} queries that both models answered")
    if missing := len(dataset.queries) - len(outcomes):
        unanswered = len(dataset.queries) - len(both)
        log.warning(
            "%d of %d queries are left out: %d were not answered by both models, %d have no score",
            *(missing, len(dataset.queries), unanswered, missing - unanswered),
        )
    return outcomes


def _gold(query: Query, gold: Any, case: Case) -> Any:
    """The row's gold answer, with the job's permission to run programs."""
    settings = case.module("dataset_processor").get("hyperparameters") or {}
    if query.scorer == "code" and settings.get("run_code") is True and isinstance(gold, Mapping):
        return {**gold, "run": float(settings.get("code_timeout") or code.SECONDS)}
    return gold


class _JournalRatings(BenchmarkQuality):
    """Includes the judge's ratings from the job's journal."""

    def __init__(self, case: Case, workspace: Workspace) -> None:
        self._case, self._workspace = case, workspace

    def __call__(self, queries: Sequence[Query], answers: Sequence[Answers], golds: Sequence[Any]) -> Scores:
        found = super().__call__(queries, answers, golds)
        rows = enumerate(zip(queries, map(tuple, answers), golds, strict=True))
        asked = {index: JudgedQuery(*row) for index, row in rows if row[0].scorer == "judge"}
        for index, judged in read_judgments(self._workspace, self._case, asked)[1].items() if asked else ():
            if (mean := mean_rating(judged)) is not None:
                found[index] = share("judge", mean)
        return found
