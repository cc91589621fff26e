"""The leaderboard on the screen."""

from __future__ import annotations

import csv
import io
import shutil
import sys
from collections.abc import Iterator, Sequence

from tabulate import SEPARATING_LINE, tabulate
from wcwidth import clip, wcswidth, wrap  # tabulate measures with it too: East Asian characters take two columns

from core.common.cells import unescaped

DISPENSABLE = ("url", "time", "paradigm")  # left out one by one where the screen is too narrow
GAP = 2  # columns of the screen between two of the table
NARROWEST = 20  # columns of the screen; no table is folded further
KEYS = 0.6  # of the width, at most, for the columns that tell the rows apart, in each part of a folded table


def print_table(text: str) -> bool:
    """Print a leaderboard, given as CSV: numbers to four digits. On a terminal it is made to fit (``_folded``). Returns
    whether anything was left out for that."""
    header, *rows = [list(map(unescaped, row)) for row in csv.reader(io.StringIO(text, newline=""))]
    width = shutil.get_terminal_size((160, 24)).columns if sys.stdout.isatty() else sys.maxsize
    whole = [_Column(name, [_short(row[i]) for row in rows], name) for i, name in enumerate(header)]
    parts = [[column for column in whole if column.name not in DISPENSABLE[:n]] for n in range(len(DISPENSABLE) + 1)]
    fitting = next((columns for columns in parts if _width(columns) <= width), None)
    lines = _table(fitting) if fitting is not None else _folded(parts[-1], header, max(width, NARROWEST))
    encoding = sys.stdout.encoding or "utf-8"
    print("\n".join(line.rstrip() for line in lines).encode(encoding, "replace").decode(encoding), flush=True)
    return fitting is None or len(fitting) < len(whole)


class _Column:
    """A column of the table: its ``heading`` is its name, one word to a line."""

    def __init__(self, name: str, cells: Sequence[str], heading: str) -> None:
        self.name, self.cells = name, list(cells)
        self.heading = "\n".join(heading.split())
        lines = [*self.heading.splitlines(), *self.cells]
        # Control characters have no width of their own; they are counted as characters.
        self.width = max((max(wcswidth(line), 0) or len(line) for line in lines), default=0)

    def cut(self, most: int) -> _Column:
        """The same, no wider than this."""
        heading = " ".join(_cut(word, most) for word in self.heading.split("\n"))
        return _Column(self.name, [_cut(cell, most) for cell in self.cells], heading)


def _cut(text: str, most: int) -> str:
    """The beginning of a text, so that it takes this many columns of the screen with the sign that it goes on."""
    return text if wcswidth(text) <= most else f"{clip(text, 0, most - 1, fillchar='')}…"


def _width(columns: Sequence[_Column]) -> int:
    return sum(column.width for column in columns) + GAP * (len(columns) - 1)


def _table(columns: Sequence[_Column]) -> list[str]:
    cells = [list(row) for row in zip(*(column.cells for column in columns), strict=True)]
    # As a row: tabulate would make a column wider than its heading.
    headings = [column.heading for column in columns]
    table = tabulate([headings, SEPARATING_LINE, *cells], tablefmt="simple", disable_numparse=True)
    return table.splitlines()[1:-1]


def _folded(columns: Sequence[_Column], header: Sequence[str], width: int) -> Iterator[str]:
    """The table in parts, each beginning with the columns that distinguish the rows, up to ``KEYS`` of the width.
    Columns that are equal in all rows follow below; one that repeats another in other spelling is left out."""
    metrics = set(header[: header.index("paradigm")] if "paradigm" in header else header) - {"rank", "algorithm"}
    several = len(columns[0].cells) > 1 if columns else False
    alike = [column for column in columns if several and column.name != "rank" and len(set(column.cells)) == 1]
    shown = [column for column in columns if column not in alike]
    described: dict[tuple[str, ...], _Column] = {}
    for column in shown:
        if column.name not in metrics:
            described.setdefault(_plain(column), column)
    keys: list[_Column] = []
    rest: list[_Column] = []
    for column in described.values():
        named = _Column(column.name, column.cells, column.name.replace("-", "- ")).cut(width // 3)
        (keys if _width([*keys, named]) <= width * KEYS else rest).append(named)
    rest += [column.cut(width // 3) for column in shown if column.name in metrics]
    part = list(keys)
    for column in rest:
        if len(part) > len(keys) and _width([*part, column]) > width:
            yield from [*_table(part), ""]
            part = list(keys)
        part.append(column)
    yield from [*_table(part), ""]
    same = [f"{column.name} {column.cells[0]}" for column in alike if column.cells[0]]
    empty = [column.name for column in alike if not column.cells[0]]
    for label, found in (("the same in all rows", same), ("empty in all rows", empty)):
        if found:
            yield from wrap(f"{label}: {', '.join(found)}", width, break_on_hyphens=False)


def _plain(column: _Column) -> tuple[str, ...]:
    """The cells without what spelling makes of them: ``edge-only`` is ``EdgeOnly``."""
    return tuple("".join(filter(str.isalnum, cell)).casefold() for cell in column.cells)


def _short(cell: str) -> str:
    """Floats to four significant digits; everything else unchanged."""
    if "." not in cell and "e" not in cell:
        return cell
    try:
        return f"{float(cell):.4g}"
    except ValueError:
        return cell
