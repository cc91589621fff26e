"""Asking both models, one after the other, so that only one is in memory. The journal keeps every answer."""

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
"""Of samples, where neither the command, nor the row, nor the model's settings name one."""

SEDNA = ("BACKEND_TYPE", "model_path")
"""Environment variables by which an edge model tells Sedna what it is."""

Rows = Sequence[dict[str, Any]]
OnAnswer = Callable[[str, bool], None]
"""Called after each answer with the side, and whether the journal had it."""


@dataclass(frozen=True)
class Questions:
    """The rows to ask: queries, what their scorers compare with, and the rows as models take them."""

    queries: tuple[Query, ...]
    golds: tuple[Any, ...]
    rows: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class Collected:
    """The outcomes, and the numbers of queries without an answer (by side) or a score; ``unparsed``: of answers (by
    side) without a letter or number, which count as wrong.
    """

    outcomes: Outcomes
    failed: Mapping[str, int]
    unscored: int
    reason: str = ""
    unparsed: Mapping[str, int] = field(default_factory=dict)


def read_rows(path: Path, quality: Quality, scorers: Mapping[str, Any], limit: int | None = None) -> Questions:
    """Rows of an Ianvs data file, or ``limit`` of them, spread evenly. ``scorers``: hyperparameters of the dataset
    processor. Raises UserError with file and line, also for rows whose answers could not be scored.
    """
    places, data = [], SimpleNamespace(x=[], y=[])
    for number, row in read_json_lines(path):
        for key in ("question", "answer"):
            if key not in row and not (key == "answer" and "answerKey" in row):
                raise UserError(f"{path}:{number}: the key {key!r} is missing: each line is a question and its answer")
        _check(row, f"{path}:{number}")
        places.append(f"{path}:{number}")
        data.x.append(row)
        data.y.append(None)
    if not places:
        raise UserError(f"{path}: the file has no questions")
    rows = DatasetProcessor(**scorers)(data).x
    chosen = sample_evenly(list(zip(places, rows, strict=True)), limit)
    queries = tuple(query_of_row(row) for _, row in chosen)
    for query, (place, row) in zip(queries, chosen, strict=True):
        quality.check(query, row["gold"], place)
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
    asked: Questions,
    settings: Mapping[str, Mapping[str, Any]],
    quality: Quality,
    journal: Path,
    *,
    samples: int = 0,
    temperature: float | None = None,
    concurrency: int = 1,
    on_answer: OnAnswer | None = None,
) -> Collected:
    """Ask the edge and the cloud model with these hyperparameters, score and compare.

    ``journal``: its folder; ``samples``: further answers to each query, at ``temperature`` (default: the row's, the
    model's, or ``TEMPERATURE``). Raises UserError if a model cannot answer (see ``max_failures``), or no query has an
    answer of both.
    """
    with job_environment(journal, concurrency):
        # Both are there before one is asked: the cloud's back end may be "same-as-edge".
        models = {name: model(**settings[name]) for name, model in SIDES.items()}
        sides = {}
        for name, model in models.items():
            rounds = [asked.rows, *[[_sampled(row, model, temperature) for row in asked.rows]] * samples]
            sides[name] = _ask(model, rounds, concurrency, on_answer)
        return _compared(asked, sides, quality)


@dataclass(frozen=True)
class _Answer:
    """Texts of all turns (None: not all were answered, for which ``error`` says why) and their cost."""

    texts: tuple[str, ...] | None
    cost: float | None
    error: str


_Side = list[list[_Answer]]
"""By query: the answer as the model's settings want it, then the samples."""


def _ask(model: RoutedModel, rounds: Sequence[Rows], concurrency: int, on_answer: OnAnswer | None) -> _Side:
    def answer(row: dict[str, Any], number: int) -> _Answer:
        # A further answer is a repeat: it has a seed, and an entry in the journal, of its own.
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
        # Who wants an end does not wait for requests under way: without the model they end, too.
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


def _compared(asked: Questions, sides: Mapping[str, _Side], quality: Quality) -> Collected:
    whole = np.ones(len(asked.queries), dtype=bool)
    failed, unparsed, reason = {}, dict[str, int](), ""
    for name, side in sides.items():
        without = np.array([any(answer.texts is None for answer in answers) for answers in side])
        failed[name] = int(without.sum())
        said = [(query.scorer, answers[0].texts) for query, answers in zip(asked.queries, side, strict=True)]
        unparsed[name] = sum(texts is not None and prediction(scorer, texts) is None for scorer, texts in said)
        reason = reason or next((answer.error for answers in side for answer in answers if answer.error), "")
        whole &= ~without
    if not whole.any():
        raise UserError(f"none of {len(whole)} queries was answered by both models: {reason}")
    places = np.flatnonzero(whole).tolist()
    queries, golds = ([column[place] for place in places] for column in (asked.queries, asked.golds))
    answers = {
        name: [[(answer.texts or (), answer.cost) for answer in side[place]] for place in places]
        for name, side in sides.items()
    }
    outcomes = outcomes_of_answers(queries, golds, answers, quality)
    if not len(outcomes):
        raise UserError(f"none of the answers to {len(places)} queries has a score; nothing was written")
    return Collected(outcomes, failed, len(places) - len(outcomes), reason, unparsed)


@contextmanager
def job_environment(journal: Path, concurrency: int) -> Iterator[None]:
    """What models take from the environment of a running test case of Ianvs; afterwards it is as before."""
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
