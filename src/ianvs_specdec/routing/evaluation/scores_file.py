"""Scores that were made elsewhere: CSV with the columns ``router``, ``score`` and ``query_id`` or ``row``.

``query_id`` is the ``id`` of the outcomes, ``row`` their place in the file, counted from 0; other columns are ignored.
A router's scores may be any numbers, the higher the sooner its query goes to the cloud. Of a pool of models a router
may have a score for each instead, named in the column ``model``: the quality that it expects of its answer.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ianvs_specdec.benchmarks.files import records
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.routing.outcomes.pool import Pool
from ianvs_specdec.routing.outcomes.recorded import Floats, Outcomes

KEYS = ("query_id", "row")


def read_scores(path: Path, outcomes: Outcomes | Pool) -> dict[str, Floats]:
    """Router -> its score of each query of ``outcomes``, [queries], NaN where there is none; of a pool whose models the
    file names, [queries, models]. UserError with file and line.
    """
    models = outcomes.models if isinstance(outcomes, Pool) else ()
    if not path.name.lower().endswith((".csv", ".csv.gz")):
        raise UserError(f"--scores {path}: scores are read from files that end in .csv or .csv.gz")
    found: dict[str, Floats] = {}
    places: Mapping[str, int] | None = None
    for where, record in records(path):
        key = _key(record, path)
        places = _places(key, outcomes, path) if places is None else places
        text, name = record[key].strip(), record["router"].strip()
        if text not in places:
            hint = " (rows are counted from 0)" if key == "row" else ""
            raise UserError(f"{where}: no outcome has the {key} {text[:40]!r}; there are {len(outcomes)}{hint}")
        if not name:
            raise UserError(f"{where}: router is empty")
        of_models = bool(models) and "model" in record
        shape = (len(outcomes), len(models)) if of_models else (len(outcomes),)
        column = found.setdefault(name, np.full(shape, np.nan))
        if of_models:
            model = record["model"].strip()
            if model not in models:
                known = ", ".join(models)
                raise UserError(f"{where}: no model of the pool is named {model[:40]!r}; there are {known}")
            column, name = column[:, models.index(model)], f"{name}, {model},"
        if not math.isnan(column[places[text]]):
            raise UserError(f"{where}: {name} has a second score for the query with {key} {text[:40]!r}")
        column[places[text]] = _score(record["score"], where)
    if not found:
        raise UserError(f"{path}: there are no scores in it")
    return found


def _key(record: Mapping[str, str], path: Path) -> str:
    """The column that names the query. UserError where a column is missing."""
    key = next((name for name in KEYS if name in record), "")
    missing = [name for name in ("router", "score") if name not in record] + ["query_id or row"] * (not key)
    if missing:
        there = ", ".join(filter(None, record)) or "nothing"
        raise UserError(f"{path}: the column {missing[0]} is missing; found: {there}")
    return key


def _places(key: str, outcomes: Outcomes | Pool, path: Path) -> dict[str, int]:
    names = [query.id if key == "query_id" else str(place) for place, query in enumerate(outcomes.queries)]
    for name, count in Counter(names).items():
        if count > 1:
            raise UserError(f"{path}: two outcomes have the id {name!r}: name queries by the column row instead")
    return {name: place for place, name in enumerate(names)}


def _score(text: str, where: str) -> float:
    try:
        score = float(text)
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise UserError(f"{where}: score must be a number, not {text[:40]!r}")
    return score
