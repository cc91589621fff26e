"""Cells of CSV files: a text that a spreadsheet would take for a formula is written with an apostrophe before it."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from typing import Any

_FORMULA = re.compile(r"'*[=+\-@\t\r\n]")
_ESCAPED = re.compile(r"'+[=+\-@\t\r\n]")


def escaped(cell: Any) -> Any:
    """The cell as it is written. Numbers stay as they are, negative ones too."""
    if not isinstance(cell, str) or not _FORMULA.match(cell) or _is_number(cell):
        return cell
    return f"'{cell}"


def unescaped(cell: str) -> str:
    """What was to be written."""
    return cell[1:] if _ESCAPED.match(cell) else cell


def csv_text(rows: Iterable[Sequence[Any]]) -> str:
    """A CSV file of these rows, the header first, with line feeds as line ends."""
    return "".join(map(_line, rows))


def _line(row: Sequence[Any]) -> str:
    text = io.StringIO()
    # Only what is in the line end is sure to be quoted within a cell.
    csv.writer(text, lineterminator="\r\n").writerow([escaped(cell) for cell in row])
    return text.getvalue().removesuffix("\r\n") + "\n"


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
