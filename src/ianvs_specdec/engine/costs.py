"""Cost tables: the times of steps and drafts on a machine, measured or stated, in a JSON file.

An object with these keys; times are seconds, axes are ascending whole numbers::

    {"format": "specdec-costs", "version": 1, "machine": text, "model": text, "method": text, "note": text,
     "emulated": whether the figures are stated rather than measured,
     "step":   {"rows": [...], "context": [...], "seconds": [[one for each context] for each of rows]},
     "prompt": {"rows": [...], "context": [...], "seconds": [[...], ...]},
     "draft":  {"requests": [...], "budget": [...], "seconds": [[...], ...]},
     "request": s, "attention": s, "shared": s, "catch_up": s, "prompt_rows": number or null}

``step`` is a step that verifies trees: ``rows`` are the computed tokens and ``context`` the cached tokens of all
sequences together. Each request with a tree adds ``request``, each row ``attention`` per token of its sequence.
``prompt`` is a step that reads prompts with ``context`` tokens. A step that does both takes the sum less ``shared``.
``draft`` is one draft of ``budget`` tokens for each of several requests; a drafter reads unread tokens in ``catch_up``
each. Without ``draft`` drafts take no time. ``prompt_rows`` is the maximum number of prompt tokens in a step, null =
unlimited.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, AliasChoices, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from ianvs_specdec.common.errors import UserError, unknown
from ianvs_specdec.common.settings import STRICT

FORMAT, VERSION = "specdec-costs", 1
MAX_FILE_BYTES = 4 << 20
"""Bytes; more than a table with the maximum number of knots needs."""


def _growing(knots: tuple[int, ...]) -> tuple[int, ...]:
    if any(one >= other for one, other in pairwise(knots)):
        raise ValueError("must be strictly increasing")
    return knots


Knot = Annotated[int, Field(ge=0, lt=1 << 31)]
Axis = Annotated[tuple[Knot, ...], Field(min_length=1, max_length=256), AfterValidator(_growing)]
Seconds = Annotated[float, Field(ge=0, le=1e4)]
"""Longer times are mistakes in the unit."""
Text = Annotated[str, Field(max_length=10_000)]


@dataclass(frozen=True, config=STRICT)
class Grid:
    """Seconds over two axes, interpolated linearly between the knots and extrapolated beyond the last one."""

    first: Annotated[Axis, Field(validation_alias=AliasChoices("first", "rows", "requests"))]
    second: Annotated[Axis, Field(validation_alias=AliasChoices("second", "context", "budget"))]
    seconds: tuple[tuple[Seconds, ...], ...]

    def __post_init__(self) -> None:
        if [len(row) for row in self.seconds] != [len(self.second)] * len(self.first):
            wanted = f"{len(self.first)} lists of {len(self.second)} numbers"
            raise ValueError(f"must hold seconds for each pair of knots: {wanted}")

    def at(self, first: float, second: float) -> float:
        """Seconds at a point. Values before an axis count as its first knot."""
        row, down = _place(self.first, first)
        column, across = _place(self.second, second)
        upper = self.seconds[row]
        value = upper[column] + across * (upper[column + 1] - upper[column]) if across else upper[column]
        if down:
            lower = self.seconds[row + 1]
            below = lower[column] + across * (lower[column + 1] - lower[column]) if across else lower[column]
            value += down * (below - value)
        return value if value > 0.0 else 0.0


def _place(knots: tuple[int, ...], value: float) -> tuple[int, float]:
    """The index of the knot before ``value``, and the fraction of the way to the next one."""
    if len(knots) == 1 or value <= knots[0]:
        return 0, 0.0
    index = min(bisect_right(knots, value), len(knots) - 1) - 1
    return index, (value - knots[index]) / (knots[index + 1] - knots[index])


def _takes_time(grid: Grid) -> Grid:
    if min(map(min, grid.seconds)) <= 0:
        raise ValueError("must have seconds of more than 0: a step takes time")
    return grid


@dataclass(frozen=True, config=STRICT)
class CostTable:
    step: Annotated[Grid, AfterValidator(_takes_time)]
    prompt: Annotated[Grid, AfterValidator(_takes_time)]
    draft: Grid | None = None
    request: Seconds = 0.0
    attention: Seconds = 0.0
    shared: Seconds = 0.0
    catch_up: Seconds = 0.0
    prompt_rows: Annotated[int, Field(ge=1, lt=1 << 31)] | None = None
    machine: Text = ""
    model: Text = ""
    method: Text = ""
    note: Text = ""
    emulated: bool = False

    def step_seconds(
        self, rows: int, context: int, requests: int, prompt_rows: int = 0, prompt_context: int = 0
    ) -> float:
        """Duration of a step that verifies trees of ``rows`` tokens for ``requests`` requests with ``context`` cached
        tokens, and reads ``prompt_rows`` tokens of prompts of ``prompt_context`` tokens."""
        reading = self.prompt.at(prompt_rows, prompt_context) if prompt_rows else 0.0
        if not rows:
            return reading
        verifying = self.step.at(rows, context) + requests * self.request + self.attention * rows * context / requests
        return verifying + reading - min(self.shared, verifying, reading)

    def draft_seconds(self, sizes: Sequence[int], behind: int = 0) -> float:
        """Duration of one draft for each of several requests, of ``sizes`` tokens, whose drafters have ``behind``
        unread tokens.

        If sizes differ, each level of the draft costs as much as for the requests that reach it.
        """
        grid = self.draft
        if grid is None or not sizes:
            return 0.0
        most = grid.second[-1]
        seconds = self.catch_up * behind
        if (smallest := min(sizes)) == max(sizes):
            return seconds + grid.at(len(sizes), min(smallest, most))
        reached = sorted(min(size, most) for size in sizes)
        below = 0
        for index, size in enumerate(reached):
            if index == 0 or size > below:
                left = len(reached) - index
                seconds += grid.at(left, size) - (grid.at(left, below) if index else 0.0)
                below = size
        return seconds

    @property
    def largest_draft(self) -> int:
        """The largest draft of the table in tokens; 0 without drafts."""
        return self.draft.second[-1] if self.draft is not None else 0

    def to_json(self) -> dict[str, Any]:
        plain = {name: value for name, value in asdict(self).items() if name not in ("step", "prompt", "draft")}
        grids = {"step": _grid_json(self.step, "rows", "context"), "prompt": _grid_json(self.prompt, "rows", "context")}
        if self.draft is not None:
            grids["draft"] = _grid_json(self.draft, "requests", "budget")
        return {"format": FORMAT, "version": VERSION, **plain, **grids}


def read(path: Path, key: str | None = None) -> CostTable:
    """Read a table from a file. Raises ``UserError`` with the configuration ``key`` that names the file."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise UserError(f"{path}: not a cost table, which has at most {MAX_FILE_BYTES >> 20} MiB", key=key)
        data = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}", key=key) from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON: {error}; `specdec profile` writes cost tables", key=key) from error
    try:
        return from_json(data)
    except ValueError as error:
        raise UserError(f"{path}: {error}", key=key) from error


def from_json(data: Any) -> CostTable:
    """The table in a JSON value. Raises ``ValueError`` with a description of the first fault."""
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ValueError(f'not a cost table: "format" must be "{FORMAT}"; `specdec profile` writes one')
    if data.get("version") != VERSION:
        raise ValueError(f"a cost table of version {data.get('version')!r:.20}, and this program reads {VERSION}")
    given = {name: value for name, value in data.items() if value is not None and name not in ("format", "version")}
    try:
        # In JSON mode lists become tuples, and nothing else is converted.
        return TypeAdapter(CostTable).validate_json(json.dumps(given))
    except ValidationError as error:
        raise ValueError(_reason(error.errors(include_url=False)[0])) from error


def _reason(fault: Mapping[str, Any]) -> str:
    place = ".".join(map(str, fault["loc"]))
    if fault["type"] == "unexpected_keyword_argument":
        return str(unknown("key", place[:40], CostTable.__dataclass_fields__))
    if fault["type"] == "missing":
        return f"{place} is missing"
    if fault["type"] == "value_error":
        return f"{place} {fault['ctx']['error']}"
    return f"{place}: {fault['msg']}, not {fault['input']!r:.40}"


def _grid_json(grid: Grid, first: str, second: str) -> dict[str, Any]:
    return {first: list(grid.first), second: list(grid.second), "seconds": [list(row) for row in grid.seconds]}
