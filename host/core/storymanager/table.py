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

DISPENSABLE = ("url", "time", "paradigm")  # dropped in this order if the screen is too narrow
GAP = 2  # characters between columns
NARROWEST = 20  # minimum width in characters of a folded table
KEYS = 0.6  # maximum fraction of the width for the columns that distinguish the rows, in each part of a folded table


def print_table(text: str) -> bool:
    """Print a leaderboard (CSV), with numbers to four digits. On a terminal it is fitted to the width (``_folded``).
    Returns whether columns or characters were left out."""
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
    """A column of the table. ``heading``: its name, one word per line."""

    def __init__(self, name: str, cells: Sequence[str], heading: str) -> None:
        self.name, self.cells = name, list(cells)
        self.heading = "\n".join(heading.split())
        lines = [*self.heading.splitlines(), *self.cells]
        # Control characters count as one.
        self.width = max((max(wcswidth(line), 0) or len(line) for line in lines), default=0)

    def cut(self, most: int) -> _Column:
        """The column, cut to this width."""
        heading = " ".join(_cut(word, most) for word in self.heading.split("\n"))
        return _Column(self.name, [_cut(cell, most) for cell in self.cells], heading)


def _cut(text: str, most: int) -> str:
    """The text, cut to this width with an ellipsis."""
    return text if wcswidth(text) <= most else f"{clip(text, 0, most - 1, fillchar='')}…"


def _width(columns: Sequence[_Column]) -> int:
    return sum(column.width for column in columns) + GAP * (len(columns) - 1)


def _table(columns: Sequence[_Column]) -> list[str]:
    cells = [list(row) for row in zip(*(column.cells for column in columns), strict=True)]
    # Headings are a row: tabulate would widen columns with long headings.
    headings = [column.heading for column in columns]
    table = tabulate([headings, SEPARATING_LINE, *cells], tablefmt="simple", disable_numparse=True)
    return table.splitlines()[1:-1]


def _folded(columns: Sequence[_Column], header: Sequence[str], width: int) -> Iterator[str]:
    """The table in parts that each begin with the columns that distinguish the rows. Columns that are equal in all rows
    are listed below; one that repeats another in other spelling is left out."""
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
    """The cells without spelling differences: ``edge-only`` equals ``EdgeOnly``."""
    return tuple("".join(filter(str.isalnum, cell)).casefold() for cell in column.cells)


def _short(cell: str) -> str:
    """A float with four significant digits; anything else unchanged."""
    if "." not in cell and "e" not in cell:
        return cell
    try:
        return f"{float(cell):.4g}"
    except ValueError:
        return cell
