"""The leaderboard on the screen."""

from __future__ import annotations

import csv
import io
import shutil
import sys
import unicodedata

DISPENSABLE = ("url", "time", "paradigm")  # left out one by one where the screen is too narrow


def print_table(text: str) -> None:
    """Print a leaderboard, given as CSV: numbers to four digits, headings broken into lines, columns as they fit."""
    header, *rows = csv.reader(io.StringIO(text, newline=""))
    columns = [[name, *(_short(row[i]) for row in rows)] for i, name in enumerate(header)]
    width = shutil.get_terminal_size((160, 24)).columns if sys.stdout.isatty() else 10_000
    for name in DISPENSABLE:
        if _total(columns) > width:
            columns = [column for column in columns if column[0] != name]
    sizes = [_size(column) for column in columns]
    headings = [column[0].split() for column in columns]
    lines = []
    for i in range(max(map(len, headings))):
        cells = [words[i] if i < len(words) else "" for words in headings]
        lines.append("  ".join(_pad(cell, size) for cell, size in zip(cells, sizes, strict=True)))
    lines.append("  ".join("-" * size for size in sizes))
    for i in range(1, len(rows) + 1):
        lines.append("  ".join(_pad(column[i], size) for column, size in zip(columns, sizes, strict=True)))
    encoding = sys.stdout.encoding or "utf-8"
    print("\n".join(line.rstrip() for line in lines).encode(encoding, "replace").decode(encoding), flush=True)


def _short(cell: str) -> str:
    """Floats to four significant digits; everything else unchanged."""
    if "." not in cell and "e" not in cell:
        return cell
    try:
        return f"{float(cell):.4g}"
    except ValueError:
        return cell


def _total(columns: list[list[str]]) -> int:
    return sum(_size(column) + 2 for column in columns)


def _size(column: list[str]) -> int:
    return max(map(_width, [*column[0].split(), *column[1:], " "]))


def _width(text: str) -> int:
    """Columns on a terminal; East Asian characters take two."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _pad(text: str, size: int) -> str:
    return text + " " * (size - _width(text))
