"""The outcomes that a finished job of Ianvs holds: what both models answered, in whichever test case."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ianvs_specdec.benchmarks import code
from ianvs_specdec.benchmarks.judge_prompts import SHIPPED, conversations, rating, read_prompts
from ianvs_specdec.benchmarks.scorers import references_of
from ianvs_specdec.errors import UserError
from ianvs_specdec.outcomes.quality import BenchmarkQuality, Quality, share
from ianvs_specdec.outcomes.recorded import Floats, Outcomes
from ianvs_specdec.reporting.routing import side_of
from ianvs_specdec.types import Query
from ianvs_specdec.workspace.cases import Case, Dataset, Workspace, read_workspace
from ianvs_specdec.workspace.kept import KeptAnswers, price

log = logging.getLogger(__name__)

SIDES = ("edge", "cloud")


@dataclass(frozen=True)
class Answered:
    """One side's answers to all turns of a query, and what they cost (None without prices)."""

    texts: tuple[str, ...]
    cost: float | None


Answers = Mapping[int, Answered]
"""By the number of the row in the data file."""


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
    pairs: dict[tuple[str, str, str], list[Case]] = {}
    for case in workspace.cases:
        models = side_of(case, "edge"), side_of(case, "cloud")
        if all(models) and algorithm in (None, case.algorithm):
            pairs.setdefault((str(case.config.get("dataset") or ""), *models), []).append(case)
    found: list[tuple[list[Case], Dataset, Answers, Answers]] = []
    for (url, *_), cases in pairs.items():
        dataset = workspace.dataset(url)
        if dataset is None:
            continue
        kept = workspace.kept(cases[0].job)
        edge, cloud = (_answers(cases, dataset, kept, side) for side in SIDES)
        if edge.keys() & cloud.keys():
            found.append((cases, dataset, edge, cloud))
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


def _answers(cases: Iterable[Case], dataset: Dataset, kept: KeptAnswers, side: str) -> dict[int, Answered]:
    """The journal's answers; those that it cannot tell apart, as of rows with their own temperature, are the test
    cases'.
    """
    found: dict[int, Answered] = {}
    for case in cases:
        own = case.module(f"{side}model").get("hyperparameters") or {}
        configurations = kept.configurations(own)
        for index, query in enumerate(dataset.queries if configurations else ()):
            if index in found or query.temperature is not None:
                continue
            if (answers := kept.answers(query, configurations)) is not None:
                found[index] = Answered(tuple(answer["text"] for answer in answers), price(own, answers))
        if len(found) == len(dataset.queries):
            return found
    for case in cases:
        for index, row in case.answers().items():
            response = row[2] if side == "edge" else row[3]
            if response is None or index in found or index >= len(dataset.queries):
                continue
            query, turns = dataset.queries[index], response.get("turns", ())
            same = response.get("query_id") == query.id and len(turns) == len(query.turns)
            if same and not response.get("error") and not response.get("lossy"):
                found[index] = Answered(tuple(turn["completion"] for turn in turns), response.get("cost"))
    return found


def _outcomes(
    cases: list[Case], dataset: Dataset, edge: Answers, cloud: Answers, quality: Quality, workspace: Workspace
) -> Outcomes:
    both = sorted(edge.keys() & cloud.keys())
    queries = [dataset.queries[index] for index in both]
    golds = [_gold(dataset.queries[index], dataset.golds[index], cases[0]) for index in both]
    if not isinstance(quality, BenchmarkQuality):
        for index, query, gold in zip(both, queries, golds, strict=True):
            quality.check(query, gold, f"row {index + 1} of {cases[0].config.get('dataset')}")
    scores = {}
    for side, answers in zip(SIDES, (edge, cloud), strict=True):
        texts = [answers[index].texts for index in both]
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
    costs = _costs(edge, both), _costs(cloud, both)
    return Outcomes(tuple(queries), edge_scores, cloud_scores, *costs).take(scored)


def _costs(answers: Answers, rows: list[int]) -> Floats | None:
    costs = [answers[index].cost for index in rows]
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
    settings = case.module("dataset_processor").get("hyperparameters") or {}
    judged = [place for place, query in enumerate(queries) if query.scorer == "judge"]
    if not judged or not settings.get("judge_model"):
        return
    named = settings.get("judge_prompts")
    prompts = read_prompts(workspace.find(str(named)) or Path(str(named)) if named else SHIPPED)
    kept = workspace.kept(case.job)
    for place in judged:
        query = queries[place]
        asked = conversations(prompts, query.turns, texts[place], references_of(golds[place]), query.group)
        said = [kept.answer(str(settings["judge_model"]), messages) for messages in asked]
        ratings = [rating(text) for text in said if text is not None]
        known = [value for value in ratings if value is not None]
        if len(known) == len(asked):
            found[place] = share("judge", sum(known) / len(known))
