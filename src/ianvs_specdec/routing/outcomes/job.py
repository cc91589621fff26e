"""The outcomes that a finished job of Ianvs holds: what both models answered, in whichever test case."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ianvs_specdec.benchmarks import code
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Query
from ianvs_specdec.routing.outcomes.quality import BenchmarkQuality, Quality, share
from ianvs_specdec.routing.outcomes.recorded import Floats, Outcomes
from ianvs_specdec.workspace.cases import Case, Dataset, Workspace, read_workspace
from ianvs_specdec.workspace.judged import JudgedQuery, judgments, score
from ianvs_specdec.workspace.sides import SIDES, Answered, Pair, PairedAnswers

log = logging.getLogger(__name__)

Both = Mapping[int, tuple[Answered, Answered]]
"""What the edge and the cloud answered, by the number of the row in the data file."""


def outcomes_of_job(folder: Path, quality: Quality | None = None, algorithm: str | None = None) -> Outcomes:
    """What the edge and the cloud model of the job in ``folder`` made of the queries that both have answered.

    ``quality``: how answers are scored (None = by the benchmark's scorer; ratings of a judge are taken from the job's
    journal). ``algorithm`` names the one to take where the job holds several pairs of models or data files. Call it in
    the folder in which ``ianvs`` was run, so that the data file is found. Raises UserError where there is nothing, or
    not one pair only; queries that are left out are told in the log.
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
        for case in cases:
            sides.add(case, dataset, case.answers())
        sides.complete(cases, dataset, workspace.kept(cases[0].job))
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
    if not isinstance(quality, BenchmarkQuality):
        for index, query, gold in zip(both, queries, golds, strict=True):
            quality.check(query, gold, f"row {index + 1} of {cases[0].config.get('dataset')}")
    scores = {}
    for place, side in enumerate(SIDES):
        texts = [answers[place].texts for answers in both.values()]
        scores[side] = quality(queries, texts, golds)
        if isinstance(quality, BenchmarkQuality):
            _add_ratings(scores[side], queries, texts, golds, cases[0], workspace)
    scored = np.array([None not in pair for pair in zip(*scores.values(), strict=True)])
    if not scored.any():
        raise UserError(f"{workspace.folder} holds no score for any of {len(both)} queries that both models answered")
    if missing := len(dataset.queries) - int(scored.sum()):
        unanswered = len(dataset.queries) - len(both)
        log.warning(
            "%d of %d queries are left out: %d were not answered by both models, %d have no score",
            *(missing, len(dataset.queries), unanswered, missing - unanswered),
        )
    edge_scores, cloud_scores = (np.array(column, dtype=np.float64) for column in scores.values())
    edge_cost, cloud_cost = (_costs(answers) for answers in zip(*both.values(), strict=True))
    return Outcomes(tuple(queries), edge_scores, cloud_scores, edge_cost, cloud_cost).take(scored)


def _costs(answers: Sequence[Answered]) -> Floats | None:
    costs = [answer.cost for answer in answers]
    return None if None in costs else np.array(costs, dtype=np.float64)


def _gold(query: Query, gold: Any, case: Case) -> Any:
    """The row's answer; where the job permitted it to run programs, with that permission."""
    settings = case.module("dataset_processor").get("hyperparameters") or {}
    if query.scorer == "code" and settings.get("run_code") is True and isinstance(gold, Mapping):
        return {**gold, "run": float(settings.get("code_timeout") or code.SECONDS)}
    return gold


def _add_ratings(
    found: list[float | None],
    queries: list[Query],
    texts: list[tuple[str, ...]],
    golds: list[Any],
    case: Case,
    workspace: Workspace,
) -> None:
    """Fill in what the job's judge said, as its journal has it."""
    rows = enumerate(zip(queries, texts, golds, strict=True))
    asked = {place: JudgedQuery(*row) for place, row in rows if row[0].scorer == "judge"}
    for place, judged in judgments(workspace, case, asked)[1].items() if asked else ():
        if (mean := score(judged)) is not None:
            found[place] = share("judge", mean)
