"""What the judge said, as the journal has it: a report never asks a judge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ianvs_specdec.benchmarks.judge_prompts import SHIPPED, conversations, rating, read_prompts, rule
from ianvs_specdec.benchmarks.scorers import references_of
from ianvs_specdec.common.types import Query
from ianvs_specdec.workspace.cases import Case, Workspace

Judgments = list[tuple[float | None, str, str]]
"""Per turn: the rating, 1 to 10, None if the text has none, the text, and the rule that the rating is read by."""


class JudgedQuery(NamedTuple):
    """An answered query, as it was put to the judge. ``gold`` is the row's answer."""

    query: Query
    answers: Sequence[str]
    gold: Any


def read_judgments(
    workspace: Workspace, case: Case, asked: Mapping[int, JudgedQuery]
) -> tuple[str, dict[int, Judgments]]:
    """Judge and prompts ("" = none) of a test case, and the judgments of fully judged queries. Raises UserError where
    the prompts cannot be read."""
    settings: Mapping[str, Any] = case.module("dataset_processor").get("hyperparameters") or {}
    if not settings.get("judge_model"):
        return "", {}
    model, named = str(settings["judge_model"]), settings.get("judge_prompts")
    prompts = read_prompts(workspace.find(str(named)) or Path(str(named)) if named else SHIPPED)
    kept, found = workspace.journal(case.job), {}
    for index, (query, answers, gold) in asked.items():
        messages = conversations(prompts, query.turns, answers, references_of(gold), query.group)
        texts = [kept.answer(model, one) for one in messages]
        if all(text is not None for text in texts):
            said, official = map(str, texts), prompts.official
            found[index] = [(rating(text, official), text, rule(text, official)) for text in said]
    judge = f"{model} with the prompts {prompts.name}"
    if asked and not found:
        case.notes.append(f"single judgments are not shown: the journal has none of {judge}")
    return judge if found else "", found


def mean_rating(found: Judgments) -> float | None:
    """The mean rating, as on the leaderboard: None if a turn has none."""
    ratings = [value for value, *_ in found if value is not None]
    return sum(ratings) / len(ratings) if ratings and len(ratings) == len(found) else None
