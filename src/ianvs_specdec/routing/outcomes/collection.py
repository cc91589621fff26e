"""Collection of outcomes: both models answer all queries, one model after the other. Answers are journaled."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from ianvs_specdec.benchmarks.files import read_json_lines, sample_evenly
from ianvs_specdec.benchmarks.rows import normalize_row, query_of, query_of_row
from ianvs_specdec.benchmarks.scorers import prediction
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Query
from ianvs_specdec.plugin.models import CloudModel, EdgeModel
from ianvs_specdec.plugin.processor import DatasetProcessor
from ianvs_specdec.plugin.routed import RoutedModel
from ianvs_specdec.records.response import Response
from ianvs_specdec.routing.outcomes.quality import Quality, outcomes_of_answers
from ianvs_specdec.routing.outcomes.recorded import Outcomes

SIDES: Mapping[str, type[RoutedModel]] = {"edge": EdgeModel, "cloud": CloudModel}
TEMPERATURE = 1.0
"""Default of samples, if neither the command, the row nor the model's settings have one."""

SEDNA = ("BACKEND_TYPE", "model_path")
"""Environment variables that an edge model sets for Sedna."""

Rows = Sequence[dict[str, Any]]
OnAnswer = Callable[[str, bool], None]
"""Called after each answer with the side, and whether it was in the journal."""


@dataclass(frozen=True)
class Questions:
    """Queries, gold answers, and the rows for the models."""

    queries: tuple[Query, ...]
    golds: tuple[Any, ...]
    rows: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class Collected:
    """The outcomes, and the numbers of queries without an answer (by side) or a score; ``reason``: the first error;
    ``unparsed``: number of answers (by side) without a letter or number, which count as wrong.
    """

    outcomes: Outcomes
    failed: Mapping[str, int]
    unscored: int
    reason: str = ""
    unparsed: Mapping[str, int] = field(default_factory=dict)


def read_rows(path: Path, quality: Quality, scorers: Mapping[str, Any], limit: int | None = None) -> Questions:
    """The rows of an Ianvs data file, or ``limit`` evenly spaced ones. ``scorers``: hyperparameters of the dataset
    processor. Raises UserError with file and line, also for rows that cannot be scored.
    """
    locations, data = [], SimpleNamespace(x=[], y=[])
    for number, row in read_json_lines(path):
        for key in ("question", "answer"):
            if key not in row and not (key == "answer" and "answerKey" in row):
                raise UserError(f"{path}:{number}: the key {key!r} is missing: each line is a question and its answer")
        _check(row, f"{path}:{number}")
        locations.append(f"{path}:{number}")
        data.x.append(row)
        data.y.append(None)
    if not locations:
        raise UserError(f"{path}: the file has no questions")
    rows = DatasetProcessor(**scorers)(data).x
    chosen = sample_evenly(list(zip(locations, rows, strict=True)), limit)
    queries = tuple(query_of_row(row) for _, row in chosen)
    for query, (location, row) in zip(queries, chosen, strict=True):
        quality.check(query, row["gold"], location)
    return Questions(queries, tuple(row["gold"] for _, row in chosen), tuple(row for _, row in chosen))


def _check(row: Mapping[str, Any], where: str) -> None:
    try:
        query = query_of(*normalize_row(row))
    except UserError as error:
        raise UserError(f"{where}: {error}") from error
    try:
        "".join((query.system, *query.turns)).encode()
    except UnicodeEncodeError as error:
        raise UserError(f"{where}: the question holds half of a character (a lone surrogate)") from error


def collect(
    questions: Questions,
    settings: Mapping[str, Mapping[str, Any]],
    quality: Quality,
    journal: Path,
    *,
    samples: int = 0,
    temperature: float | None = None,
    concurrency: int = 1,
    on_answer: OnAnswer | None = None,
) -> Collected:
    """Have the edge and the cloud model answer, and score the answers.

    ``settings``: hyperparameters by side; ``journal``: its folder; ``samples``: additional answers per query, at
    ``temperature`` (default: the row's, the model's, or ``TEMPERATURE``). Raises UserError if a model fails (see
    ``max_failures``), or if no query has an answer from both.
    """
    with job_environment(journal, concurrency):
        # The cloud's back end may be "same-as-edge".
        models = {name: model(**settings[name]) for name, model in SIDES.items()}
        sides = {}
        for name, model in models.items():
            rounds = [questions.rows, *[[_sampled(row, model, temperature) for row in questions.rows]] * samples]
            sides[name] = _ask(model, rounds, concurrency, on_answer)
        return _compared(questions, sides, quality)


@dataclass(frozen=True)
class _Answer:
    """Texts of all turns and their cost, or None and the ``error``."""

    texts: tuple[str, ...] | None
    cost: float | None
    error: str


_Side = list[list[_Answer]]
"""By query: the answer, then the samples."""


def _ask(model: RoutedModel, rounds: Sequence[Rows], concurrency: int, on_answer: OnAnswer | None) -> _Side:
    def answer(row: dict[str, Any], number: int) -> _Answer:
        # A repeat has a separate seed and journal entry.
        response = model.answer(row, repeat=number)
        if on_answer is not None:
            on_answer(model.side, bool(response["replayed"] or response["cached"]))
        return _answer(response)

    try:
        answers = [_all(partial(answer, number=number), rows, concurrency, model) for number, rows in enumerate(rounds)]
    finally:
        model.cleanup()
    return [list(one) for one in zip(*answers, strict=True)]


def _all(
    answer: Callable[[dict[str, Any]], _Answer], rows: Rows, concurrency: int, model: RoutedModel
) -> list[_Answer]:
    if concurrency == 1:
        return [answer(row) for row in rows]
    pool = ThreadPoolExecutor(concurrency, thread_name_prefix=model.side)
    try:
        return list(pool.map(answer, rows))
    except BaseException:
        # Closing the model cancels the running requests.
        pool.shutdown(wait=False, cancel_futures=True)
        model.cleanup()
        raise
    finally:
        pool.shutdown()


def _answer(response: Response) -> _Answer:
    if response.get("error"):
        return _Answer(None, None, str(response["error"]))
    return _Answer(tuple(turn["completion"] for turn in response["turns"]), response["cost"], "")


def _sampled(row: dict[str, Any], model: RoutedModel, temperature: float | None) -> dict[str, Any]:
    query = query_of_row(row)
    chosen = temperature or query.temperature or model.settings.sampling.temperature or TEMPERATURE
    return {**row, "query": {**query.to_json(), "temperature": chosen}}


def _compared(questions: Questions, sides: Mapping[str, _Side], quality: Quality) -> Collected:
    answered = np.ones(len(questions.queries), dtype=bool)
    failed, unparsed, reason = {}, dict[str, int](), ""
    for name, side in sides.items():
        without = np.array([any(answer.texts is None for answer in answers) for answers in side])
        failed[name] = int(without.sum())
        given = [(query.scorer, answers[0].texts) for query, answers in zip(questions.queries, side, strict=True)]
        unparsed[name] = sum(texts is not None and prediction(scorer, texts) is None for scorer, texts in given)
        reason = reason or next((answer.error for answers in side for answer in answers if answer.error), "")
        answered &= ~without
    if not answered.any():
        raise UserError(f"none of {len(answered)} queries was answered by both models: {reason}")
    positions = np.flatnonzero(answered).tolist()
    queries, golds = ([column[position] for position in positions] for column in (questions.queries, questions.golds))
    answers = {
        name: [[(answer.texts or (), answer.cost) for answer in side[position]] for position in positions]
        for name, side in sides.items()
    }
    outcomes = outcomes_of_answers(queries, golds, answers, quality)
    if not len(outcomes):
        raise UserError(f"none of the answers to {len(positions)} queries has a score; nothing was written")
    return Collected(outcomes, failed, len(positions) - len(outcomes), reason, unparsed)


@contextmanager
def job_environment(journal: Path, concurrency: int) -> Iterator[None]:
    """Set the environment variables of a test case of Ianvs for the models, and restore them afterwards."""
    own = {"RESULT_SAVED_URL": str(journal.absolute() / "label"), "IANVS_CONCURRENCY": str(concurrency)}
    before = {name: os.environ.get(name) for name in (*own, *SEDNA)}
    os.environ.update(own)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
