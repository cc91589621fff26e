"""What steps and drafts cost on a machine, as a table in a JSON file: measured, or stated.

One object with these keys; times are seconds, axes are whole numbers that grow::

    {"format": "specdec-costs", "version": 1, "machine": text, "model": text, "method": text, "note": text,
     "emulated": whether the figures are stated rather than measured,
     "step":   {"rows": [...], "context": [...], "seconds": [[one for each context] for each of rows]},
     "prompt": {"rows": [...], "context": [...], "seconds": [[...], ...]},
     "draft":  {"requests": [...], "budget": [...], "seconds": [[...], ...]},
     "request": s, "attention": s, "shared": s, "catch_up": s, "prompt_rows": number or null}

``step`` is a step that verifies trees: ``rows`` are the tokens that it computes for all sequences together, ``context``
the tokens that these hold together. Each request with a tree adds ``request``, each row ``attention`` for every token
of its sequence. ``prompt`` is a step that reads prompts of so much ``context``. A step that does both takes their sum
less ``shared``. ``draft`` is one draft for several requests at once, each of ``budget`` tokens; a drafter reads what it
has missed in ``catch_up`` for each token. Without ``draft`` there is none.
``prompt_rows`` is the longest piece of a prompt in one step, null = all of it.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from ianvs_specdec.common.errors import UserError

FORMAT, VERSION = "specdec-costs", 1
LARGEST_FILE = 4 << 20
"""Bytes: a table with the most knots that are taken is smaller."""
MOST_KNOTS = 256
"""Of an axis."""
LARGEST_KNOT = 1 << 31
SLOWEST = 1e4
"""Seconds: what takes longer is a mistake in the unit."""
LONGEST_TEXT = 10_000
_TEXTS = ("machine", "model", "method", "note")
_SECONDS = ("request", "attention", "shared", "catch_up")


@dataclass(frozen=True)
class Grid:
    """Seconds over two axes, linear between the knots, and beyond the last as between the last two."""

    first: tuple[int, ...]
    second: tuple[int, ...]
    seconds: tuple[tuple[float, ...], ...]

    def at(self, first: float, second: float) -> float:
        """Seconds there. What lies before an axis counts as its first knot."""
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
    """The knot before ``value``, and how far it is from there to the next one."""
    if len(knots) == 1 or value <= knots[0]:
        return 0, 0.0
    index = min(bisect_right(knots, value), len(knots) - 1) - 1
    return index, (value - knots[index]) / (knots[index + 1] - knots[index])


@dataclass(frozen=True)
class CostTable:
    """What the file holds (see above)."""

    step: Grid
    prompt: Grid
    draft: Grid | None = None
    request: float = 0.0
    attention: float = 0.0
    shared: float = 0.0
    catch_up: float = 0.0
    prompt_rows: int | None = None
    machine: str = ""
    model: str = ""
    method: str = ""
    note: str = ""
    emulated: bool = False

    def step_seconds(
        self, rows: int, context: int, requests: int, prompt_rows: int = 0, prompt_context: int = 0
    ) -> float:
        """A step that verifies trees of ``rows`` tokens in all, of so many ``requests`` that hold ``context`` tokens,
        and reads ``prompt_rows`` of prompts of ``prompt_context`` tokens."""
        reading = self.prompt.at(prompt_rows, prompt_context) if prompt_rows else 0.0
        if not rows:
            return reading
        verifying = self.step.at(rows, context) + requests * self.request + self.attention * rows * context / requests
        return verifying + reading - min(self.shared, verifying, reading)

    def draft_seconds(self, sizes: Sequence[int], behind: int = 0) -> float:
        """One draft for each of several requests, of ``sizes`` tokens, whose drafters have ``behind`` tokens to read.

        Where the sizes differ, each level of the draft costs as much as for those that reach it.
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
        """The most tokens that a draft is told to have; 0 where there are none."""
        return self.draft.second[-1] if self.draft is not None else 0

    def to_json(self) -> dict[str, Any]:
        plain = {name: value for name, value in asdict(self).items() if name not in ("step", "prompt", "draft")}
        grids = {"step": _grid_json(self.step, "rows", "context"), "prompt": _grid_json(self.prompt, "rows", "context")}
        if self.draft is not None:
            grids["draft"] = _grid_json(self.draft, "requests", "budget")
        return {"format": FORMAT, "version": VERSION, **plain, **grids}


def read(path: Path, key: str | None = None) -> CostTable:
    """The table in a file. Raises ``UserError``, with the configuration ``key`` that names it, for anything else."""
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise UserError(f"{path}: larger than {LARGEST_FILE >> 20} MiB, which no cost table is", key=key)
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
    """The table in a JSON value. Raises ``ValueError`` that says what is wrong with it."""
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ValueError(f'not a cost table: "format" must be "{FORMAT}"; `specdec profile` writes one')
    if data.get("version") != VERSION:
        raise ValueError(f"a cost table of version {data.get('version')!r:.20}, and this program reads {VERSION}")
    known = {"format", "version", "emulated", "step", "prompt", "draft", "prompt_rows", *_TEXTS, *_SECONDS}
    if unknown := sorted(str(name) for name in data if name not in known):
        raise ValueError(f"unknown key {unknown[0]!r:.40}; known: {', '.join(sorted(known))}")
    for name in _TEXTS:
        if not isinstance(data.get(name, ""), str) or len(data.get(name, "")) > LONGEST_TEXT:
            raise ValueError(f"{name} must be a text of at most {LONGEST_TEXT} characters")
    if not isinstance(data.get("emulated", False), bool):
        raise ValueError("emulated must be true (the figures are stated) or false (they were measured)")
    plain: dict[str, Any] = {name: _seconds(data.get(name, 0.0), name) for name in _SECONDS}
    rows = data.get("prompt_rows")
    if rows is not None and not (type(rows) is int and 1 <= rows <= LARGEST_KNOT):
        raise ValueError(f"prompt_rows must be a whole number from 1, or null, not {rows!r:.40}")
    return CostTable(
        _grid(data, "step", ("rows", "context")),
        _grid(data, "prompt", ("rows", "context")),
        _grid(data, "draft", ("requests", "budget")) if data.get("draft") is not None else None,
        prompt_rows=rows,
        emulated=data.get("emulated", False),
        **plain,
        **{name: data.get(name, "") for name in _TEXTS},
    )


def _grid(data: Mapping[str, Any], name: str, axes: tuple[str, str]) -> Grid:
    given = data.get(name)
    if not isinstance(given, dict):
        raise ValueError(f'{name} is missing: an object with "{axes[0]}", "{axes[1]}" and "seconds"')
    first, second = (_axis(given.get(axis), f"{name}.{axis}") for axis in axes)
    rows = given.get("seconds")
    if not isinstance(rows, list) or len(rows) != len(first):
        raise ValueError(f"{name}.seconds must hold one list for each of {name}.{axes[0]}, {len(first)} lists")
    table = []
    for number, row in enumerate(rows):
        if not isinstance(row, list) or len(row) != len(second):
            raise ValueError(f"{name}.seconds[{number}] must hold {len(second)} numbers, one for each of {axes[1]}")
        table.append(tuple(_seconds(value, f"{name}.seconds[{number}]") for value in row))
    if name != "draft" and min(map(min, table)) <= 0:
        raise ValueError(f"{name}.seconds must be more than 0: a step takes time")
    return Grid(first, second, tuple(table))


def _axis(knots: Any, name: str) -> tuple[int, ...]:
    whole = isinstance(knots, list) and all(type(knot) is int and 0 <= knot <= LARGEST_KNOT for knot in knots)
    if not whole or not 1 <= len(knots) <= MOST_KNOTS:
        raise ValueError(f"{name} must be a list of 1 to {MOST_KNOTS} whole numbers of 0 or more")
    if any(one >= other for one, other in pairwise(knots)):
        raise ValueError(f"{name} must grow from each number to the next")
    return tuple(knots)


def _seconds(value: Any, name: str) -> float:
    right = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not right or not math.isfinite(value) or not 0 <= value <= SLOWEST:
        raise ValueError(f"{name} must be seconds from 0 to {SLOWEST:g}, not {value!r:.40}")
    return float(value)


def _grid_json(grid: Grid, first: str, second: str) -> dict[str, Any]:
    return {first: list(grid.first), second: list(grid.second), "seconds": [list(row) for row in grid.seconds]}
