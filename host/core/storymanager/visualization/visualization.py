"""The leaderboard on the screen."""

from __future__ import annotations

import csv
import io
import shutil
import sys

from tabulate import SEPARATING_LINE, tabulate
from wcwidth import wcswidth  # tabulate measures with it too: East Asian characters take two columns

from core.common.cells import unescaped

DISPENSABLE = ("url", "time", "paradigm")  # left out one by one where the screen is too narrow


def print_table(text: str) -> None:
    """Print a leaderboard, given as CSV: numbers to four digits, headings broken into lines, columns as they fit."""
    header, *rows = [list(map(unescaped, row)) for row in csv.reader(io.StringIO(text, newline=""))]
    width = shutil.get_terminal_size((160, 24)).columns if sys.stdout.isatty() else sys.maxsize
    for count in range(len(DISPENSABLE) + 1):
        shown = [i for i, name in enumerate(header) if name not in DISPENSABLE[:count]]
        headings = ["\n".join(header[i].split()) for i in shown]
        cells = [[_short(row[i]) for i in shown] for row in rows]
        # As a row: tabulate would make a column wider than its heading.
        table = tabulate([headings, SEPARATING_LINE, *cells], tablefmt="simple", disable_numparse=True)
        lines = table.splitlines()[1:-1]
        if max(map(wcswidth, lines)) <= width:
            break
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
