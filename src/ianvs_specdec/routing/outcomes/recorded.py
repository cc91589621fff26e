"""Outcomes: quality (0 to 1) and cost of both models' answers to each query, and their files.

CSV has the columns ``query``, ``edge_correct``, ``cloud_correct`` (true, false or 0 to 1), and optionally
``edge_cost``, ``cloud_cost``, ``group`` and ``id``. JSON lines, as of ``specdec route label``, have ``query`` (a
question as in Ianvs' data files), ``edge``, ``cloud``, and optionally ``edge_cost``, ``cloud_cost``, ``edge_samples``
and ``cloud_samples`` (the qualities of several answers).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from ianvs_specdec.benchmarks.files import records
from ianvs_specdec.benchmarks.rows import query_of
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.storage.atomic import write_atomically
from ianvs_specdec.common.storage.cells import unescaped
from ianvs_specdec.common.types import Query

Floats = NDArray[np.float64]
Samples = tuple[tuple[float, ...], ...]

COSTS, SAMPLES = ("edge_cost", "cloud_cost"), ("edge_samples", "cloud_samples")
OPTIONAL = (*COSTS, *SAMPLES)
WORDS = {"true": 1.0, "false": 0.0}
SUFFIXES = (".csv", ".csv.gz", ".jsonl", ".jsonl.gz")


def text_of(query: Query) -> str:
    """The text of a query for routers: the system prompt and the user's turns."""
    return "\n\n".join(part for part in (query.system, *query.turns) if part)


@dataclass(frozen=True, eq=False)
class Recorded:
    """Queries, and columns [queries] of the models' results."""

    queries: tuple[Query, ...]

    def __len__(self) -> int:
        return len(self.queries)

    @property
    def groups(self) -> list[str]:
        return [query.group for query in self.queries]

    def take(self, indices: NDArray[Any]) -> Self:
        """The rows at these indices, or of a mask."""
        chosen = np.arange(len(self))[indices]

        def rows(column: Any) -> Any:
            return column[chosen] if isinstance(column, np.ndarray) else tuple(column[index] for index in chosen)

        return replace(self, **{name: rows(column) for name, column in self._columns().items()})

    def _columns(self) -> dict[str, Any]:
        return {name: column for name, column in vars(self).items() if column is not None}

    def held_out(self, by: str = "row", share: float = 0.25, seed: int = 0) -> NDArray[np.bool_]:
        """A mask of about ``share`` of the rows, bool [queries], that does not split equal queries (``by="row"``) or
        groups (``by="group"``). Raises UserError if a side would be empty.
        """
        held = np.zeros(len(self), dtype=bool)
        units: dict[Any, list[int]] = {}
        for index, unit in enumerate(self.groups if by == "group" else self.digests().tolist()):
            units.setdefault(unit, []).append(index)
        members = list(units.values())
        for chosen in np.random.default_rng(seed).permutation(len(members)):
            if held.sum() + len(members[chosen]) / 2 > share * len(self) and held.any():
                break
            held[members[chosen]] = True
        if held.all() or not held.any():
            what = (
                f"all queries are of one group ({self.groups[0]!r})" if by == "group" else "there are too few queries"
            )
            raise UserError(f"{share:g} of {len(self)} queries cannot be held out by {by}: {what}")
        return held

    def digests(self) -> NDArray[np.uint64]:
        return digests(self.queries)


@dataclass(frozen=True, eq=False)
class Sides:
    """Quality and cost of both models' answers, float64 [queries] each. Without ``edge_cost`` the edge is free."""

    edge: Floats
    cloud: Floats
    edge_cost: Floats | None = None
    cloud_cost: Floats | None = None

    models: ClassVar[tuple[str, ...]] = ("edge", "cloud")
    is_pair: ClassVar[bool] = True

    def __len__(self) -> int:
        return len(self.edge)

    @property
    def gain(self) -> Floats:
        return self.cloud - self.edge

    @property
    def quality(self) -> Floats:
        """float64 [queries, 2]."""
        return np.stack([self.edge, self.cloud], axis=1)

    @property
    def cost(self) -> Floats | None:
        """float64 [queries, 2]."""
        if self.cloud_cost is None:
            return None
        return np.stack([np.zeros(len(self)) if self.edge_cost is None else self.edge_cost, self.cloud_cost], axis=1)


@dataclass(frozen=True, eq=False)
class Outcomes(Sides, Recorded):
    """``edge_samples``, ``cloud_samples``: quality of several answers per query."""

    edge_samples: Samples | None = None
    cloud_samples: Samples | None = None

    def summary(self) -> dict[str, float]:
        means = {side: round(float(getattr(self, side).mean()), 6) for side in ("edge", "cloud")}
        return {"queries": len(self), **means}

    def split(self, by: str = "row", share: float = 0.25, seed: int = 0) -> tuple[Outcomes, Outcomes]:
        held = self.held_out(by, share, seed)
        return self.take(~held), self.take(held)


def digests(queries: Iterable[Query]) -> NDArray[np.uint64]:
    """64-bit hashes of the queries' texts, uint64 [queries]."""
    texts = (text_of(query).encode("utf-8", "surrogatepass") for query in queries)
    return np.array([int.from_bytes(hashlib.blake2b(t, digest_size=8).digest(), "little") for t in texts], np.uint64)


def load_outcomes(path: Path) -> Outcomes:
    """Read a file of outcomes. Raises UserError with file, line and column."""
    read = answers_in(path, ("edge", "cloud"))
    columns: dict[str, Any] = dict(zip(("edge", "cloud"), np.array([row.quality for row in read]).T, strict=True))
    for name in OPTIONAL:
        parse = number_of if name in COSTS else _samples
        given = [
            None if row.record.get(name) in (None, "") else parse(row.record[name], name, row.location) for row in read
        ]
        if None not in given:
            columns[name] = np.array(given) if name in COSTS else tuple(given)
        elif any(value is not None for value in given):
            location = read[given.index(None)].location
            raise UserError(f"{location}: {name} is missing: give it for every query, or for none")
    return Outcomes(tuple(row.query for row in read), **columns)


class Row(NamedTuple):
    location: str
    query: Query
    quality: list[float]
    record: Mapping[str, Any]


def answers_in(path: Path, models: Iterable[str]) -> list[Row]:
    """The rows of a file of outcomes. Raises UserError with file, line and column."""
    csv, rows = is_csv(path), []
    columns = [f"{name}_correct" if csv else name for name in models]
    for index, (location, record) in enumerate(records(path)):
        _check_columns(record, ("query", *columns), location, csv)
        quality = [number_of(record[column], column, location, high=1.0) for column in columns]
        rows.append(Row(location, _query_in(record, location, index, csv), quality, record))
    if not rows:
        raise UserError(f"{path}: there are no outcomes in it")
    return rows


def is_csv(path: Path) -> bool:
    """Whether the file is CSV (True) or JSON lines, by its name. Raises UserError for other names."""
    name = path.name.lower()
    if not name.endswith(SUFFIXES):
        raise UserError(f"{path}: outcomes are read from files that end in {', '.join(SUFFIXES)}")
    return name.endswith((".csv", ".csv.gz"))


def save_outcomes(path: Path, outcomes: Outcomes, **extra: Sequence[Any]) -> None:
    """Write JSON lines atomically. ``extra``: additional columns by name, one value per query."""
    lines = []
    for index, query in enumerate(outcomes.queries):
        line: dict[str, Any] = {"query": query.to_json()}
        for name in ("edge", "cloud", *OPTIONAL):
            if (column := getattr(outcomes, name)) is not None:
                line[name] = list(column[index]) if name in SAMPLES else float(column[index])
        line |= {name: values[index] for name, values in extra.items()}
        lines.append(json.dumps(line, ensure_ascii=False) + "\n")
    write_atomically(path, "".join(lines))


def _check_columns(record: Mapping[str, Any], columns: Iterable[str], location: str, csv: bool) -> None:
    for column in columns:
        if record.get(column) is None:
            there = ", ".join(str(name) for name in record) or "nothing"
            hint = ". Columns are to be separated by commas" if csv and len(record) == 1 else ""
            raise UserError(f"{location}: there is no {column}; found: {there}{hint}")


def _query_in(record: Mapping[str, Any], location: str, index: int, csv: bool) -> Query:
    question = record["query"]
    if csv:
        group, identifier = record.get("group") or "", record.get("id") or str(index)
        question = {"turns": [unescaped(question)], "group": unescaped(group), "id": unescaped(identifier)}
    try:
        return query_of(question, None, index)
    except UserError as error:
        raise UserError(f"{location}: {error}") from error


def number_of(value: Any, name: str, location: str, *, high: float = math.inf) -> float:
    """Parse true, false, or a number from 0 to ``high``. Raises UserError with the location and the column."""
    number = value
    if isinstance(value, str):
        word = value.strip().lower()
        try:
            number = WORDS[word] if word in WORDS else float(word)
        except ValueError:
            number = None
    if not isinstance(number, (bool, int, float)) or not 0 <= number <= high or math.isinf(number):
        wanted = "true, false or a number from 0 to 1" if high == 1 else "a number from 0"
        raise UserError(f"{location}: {name} must be {wanted}, not {str(value)[:40]!r}")
    return float(number)


def _samples(value: Any, name: str, location: str) -> tuple[float, ...]:
    if not isinstance(value, list) or not value:
        raise UserError(f"{location}: {name} must be a list of numbers from 0 to 1")
    return tuple(number_of(item, name, location, high=1.0) for item in value)


@dataclass(frozen=True, eq=False)
class Pool(Recorded):
    """CSV has the columns ``query``, ``NAME_correct`` and ``NAME_cost`` of each model, and optionally ``group`` and
    ``id``; JSON lines have ``query``, ``NAME`` and ``NAME_cost``.

    ``quality``, ``cost``: float64 [queries, models]; ``models``: by ascending mean cost.
    """

    quality: Floats
    cost: Floats
    models: tuple[str, ...]
    is_pair: ClassVar[bool] = False

    def _columns(self) -> dict[str, Any]:
        return {name: column for name, column in super()._columns().items() if name != "models"}

    @property
    def best(self) -> str:
        return self.models[int(self.quality.mean(axis=0).argmax())]


def load_pool(path: Path, prices: Mapping[str, float | None]) -> Pool:
    """``prices``: model -> cost per answer, None to read it from the file. Raises UserError with file and line."""
    rows = answers_in(path, prices)
    cost = [[_cost(row.record, name, price, row.location) for name, price in prices.items()] for row in rows]
    means = np.mean(cost, axis=0)
    if np.ptp(means) <= 0:
        raise UserError(f"{path}: all models cost the same, so they have no order")
    order = np.argsort(means, kind="stable")
    names = tuple(np.array(list(prices))[order].tolist())
    quality = np.array([row.quality for row in rows])
    return Pool(tuple(row.query for row in rows), quality[:, order], np.array(cost)[:, order], names)


def _cost(record: Mapping[str, Any], name: str, price: float | None, location: str) -> float:
    if price is not None:
        return price
    column = f"{name}_cost"
    if record.get(column) in (None, ""):
        raise UserError(f"{location}: there is no {column}; give it for every query, or one price as {name}=PRICE")
    return number_of(record[column], column, location)


def prices_of(texts: Sequence[str]) -> dict[str, float | None]:
    """Parse ``NAME`` or ``NAME=PRICE``: model -> price. Raises UserError for an invalid price or too few models."""
    found: dict[str, float | None] = {}
    for text in texts:
        name, given, price = text.partition("=")
        if not name or name in found:
            raise UserError(f"--models: {name!r} is there twice" if name else f"--models: {text!r} names no model")
        found[name] = _price(price, text) if given else None
    if len(found) < 2:
        raise UserError(f"--models: there must be two models or more to choose from, not only {texts[0]!r}")
    return found


def _price(text: str, given: str) -> float:
    try:
        price = float(text)
    except ValueError:
        price = math.nan
    if not 0 <= price < math.inf:
        raise UserError(f"--models: the price of an answer must be a number from 0, not {given!r}")
    return price
