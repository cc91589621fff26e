"""CSV files. A text that a spreadsheet would read as a formula gets a leading apostrophe."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence

_FORMULA = re.compile(r"'*[=+\-@\t\r\n]")
_ESCAPED = re.compile(r"'+[=+\-@\t\r\n]")


def csv_text(rows: Iterable[Sequence[object]]) -> str:
    """The rows (the header first) as CSV, with line feeds as line ends."""
    return "".join(map(_line, rows))


def unescaped(cell: str) -> str:
    return cell[1:] if _ESCAPED.match(cell) else cell


def _line(row: Sequence[object]) -> str:
    text = io.StringIO()
    # The writer quotes a cell with a character of the line terminator.
    csv.writer(text, lineterminator="\r\n").writerow([_escaped(cell) for cell in row])
    return text.getvalue().removesuffix("\r\n") + "\n"


def _escaped(cell: object) -> object:
    """Numbers are unchanged, negative ones too."""
    if not isinstance(cell, str) or not _FORMULA.match(cell):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell
