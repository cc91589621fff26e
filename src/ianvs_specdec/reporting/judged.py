"""What the judge said, as the journal has it: a report never asks a judge."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ianvs_specdec.benchmarks.judge_prompts import SHIPPED, conversations, rating, read_prompts
from ianvs_specdec.benchmarks.scorers import references_of
from ianvs_specdec.errors import UserError
from ianvs_specdec.reporting.workspace import Case, Dataset, Row, Workspace

Judgments = list[tuple[float | None, str]]
"""Per turn: the rating, 1 to 10, None if the text has none, and the text."""


def judgments(
    workspace: Workspace, case: Case, dataset: Dataset, rows: Mapping[int, Row]
) -> tuple[str, dict[int, Judgments]]:
    """Who judged a test case's queries by which prompts ("" = nobody), and the judgments. A query of which one is
    missing is left out.
    """
    settings: Mapping[str, Any] = case.module("dataset_processor").get("hyperparameters") or {}
    if not settings.get("judge_model"):
        return "", {}
    named = settings.get("judge_prompts")
    path = workspace.find(str(named)) if named else SHIPPED
    try:
        prompts = read_prompts(path or Path(str(named)))
    except (UserError, OSError) as error:
        case.notes.append(f"single judgments are not shown: {error}")
        return "", {}
    kept = workspace.kept(case.job)
    found, missed = {}, False
    for index, (_, result, _, _) in rows.items():
        query = dataset.queries[index]
        answers = [turn["completion"] for turn in result.get("turns", ())]
        if result.get("scorer") != "judge" or len(answers) != len(query.turns) or result.get("error"):
            continue
        asked = conversations(prompts, query.turns, answers, references_of(dataset.golds[index]), query.group)
        texts = [kept.answer(str(settings["judge_model"]), messages) for messages in asked]
        if all(text is not None for text in texts):
            found[index] = [(rating(str(text)), str(text)) for text in texts]
        else:
            missed = True
    judge = f"{settings['judge_model']} with the prompts {prompts.name}"
    if missed and not found:
        case.notes.append(f"single judgments are not shown: the journal has none of {judge}")
    return judge if found else "", found


def score(found: Judgments) -> float | None:
    """The mean rating, as on the leaderboard: None if a turn has none."""
    ratings = [value for value, _ in found if value is not None]
    return sum(ratings) / len(ratings) if ratings and len(ratings) == len(found) else None
