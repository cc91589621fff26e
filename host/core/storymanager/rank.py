"""The leaderboards ``rank/all_rank.csv`` and ``rank/selected_rank.csv``, in the layout of Ianvs.

They are written after every test case. The former has the rows of all runs; a test case that runs again replaces its
row. The latter, and the screen, have the rows of this run.
"""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Collection
from typing import Any

from core.common.cells import csv_text, unescaped
from core.common.errors import WorkspaceError
from core.common.files import make_folder, write_atomic
from core.common.utils import plural
from core.storymanager.rank_config import Columns, RankConfig

Row = dict[str, str]
"""The cells of a test case, by column."""


class Rank:
    """``save()`` adds a test case to the leaderboards, ``plot()`` prints them. ``columns``: those of this job."""

    def __init__(self, config: RankConfig, workspace: str, columns: Columns) -> None:
        self.config, self.columns = config, columns
        self.workspace, self.folder = workspace, os.path.join(workspace, "rank")
        self.all_rank_file = os.path.join(self.folder, "all_rank.csv")
        self.selected_rank_file = os.path.join(self.folder, "selected_rank.csv")
        # With save_mode selected_only, the only file has the rows of all runs.
        self._keep_all = config.save_mode != "selected_only"
        self._keeping_file = self.all_rank_file if self._keep_all else self.selected_rank_file
        self._chosen = columns.chosen(config.selected).names()
        self._shown = config.output or self._chosen
        self._finished: dict[str, Row] = {}  # this run's, by url

    def save(self, row: Row) -> None:
        """Add a row to both files, or replace that with the same ``url``. Raises WorkspaceError."""
        make_folder(self.folder)
        header, rows = self._kept()
        rows = self._sorted([old for old in rows if old.get("url") != row["url"]] + [row])
        self._finished[row["url"]] = row
        if self._keep_all:
            write_atomic(self.all_rank_file, _csv(self.columns.extended(header).names(), rows))
            rows = self._sorted(list(self._finished.values()))
        write_atomic(self.selected_rank_file, _csv(self._shown, self._selected(rows)))

    def _kept(self) -> tuple[list[str], list[Row]]:
        """Header and rows of all runs; of this run if the only file lacks ``algorithm`` or ``url``."""
        if not self._keep_all and not {"algorithm", "url"} <= set(self._shown):
            return self._shown, list(self._finished.values())
        return _read(self._keeping_file)

    def _sorted(self, rows: list[Row]) -> list[Row]:
        """Sorted by ``sort_by``, as numbers if the column has any, else as texts. Rows without a value are last."""
        for column, direction in reversed(self.config.sort_by):
            keys: dict[int, Any] = {id(row): _number(row.get(column, "")) for row in rows}
            if all(key is None for key in keys.values()) and column not in self.columns.metrics:
                keys = {id(row): row.get(column) or None for row in rows}
            with_value = [row for row in rows if keys[id(row)] is not None]
            with_value.sort(key=lambda row, keys=keys: keys[id(row)], reverse=direction == "descend")  # type: ignore[misc]
            rows = [*with_value, *(row for row in rows if keys[id(row)] is None)]
        return rows

    def _selected(self, rows: list[Row]) -> list[Row]:
        """Rows of the selected paradigms. Of rows that are equal except for time and url, only the first."""
        names, paradigms = self._chosen[:-2], self.config.selected["paradigms"]
        seen: dict[tuple[str, ...], Row] = {}
        for row in rows:
            if not paradigms or row.get("paradigm") in paradigms:
                seen.setdefault(tuple(row.get(name, "") for name in names), row)
        return list(seen.values())

    def plot(self, urls: Collection[str]) -> list[str]:
        """Print the selected leaderboard of this run. Returns notes on rows that are hidden or look alike. ``urls``:
        those of the job's test cases."""
        from core.storymanager.table import print_table

        notes = self._ambiguous_rows()
        if self._finished:
            rows = self._selected(self._sorted(list(self._finished.values())))
            if print_table(_csv(self._shown, rows)):
                notes.append(f"the whole table is in {self.selected_rank_file}")
            if self._keep_all:
                notes.append(f"all columns are in {self.all_rank_file}")
        old = [row.get("url", "") for row in self._kept()[1] if row.get("url") not in self._finished]
        failed = sum(url in urls for url in old)
        kept = f"kept in {self._keeping_file}"
        if failed:
            cases = plural(failed, "test case")
            notes.append(f"not in the table: {cases} that failed now; the rows of an earlier run are {kept}")
        if other := len(old) - failed:
            rows_are = f"{plural(other, 'row')} of other configurations or data {'is' if other == 1 else 'are'}"
            notes.append(f"{rows_are} {kept} and not shown; to start over, delete or move {self.workspace}")
        return notes

    def _ambiguous_rows(self) -> list[str]:
        """A note on hyperparameters that distinguish rows but are not in the selected columns."""
        hidden = [name for name in self.columns.hyperparameters if name not in self._shown]
        described = [name for name in self._shown if name not in (*self.columns.metrics, "time", "url")]
        alike: dict[tuple[str, ...], list[Row]] = {}
        for row in self._finished.values():
            alike.setdefault(tuple(row.get(name, "") for name in described), []).append(row)
        differ = [n for n in hidden if any(len({row.get(n) for row in rows}) > 1 for rows in alike.values())]
        advice = "add them to selected_dataitem.hyperparameters to show them"
        return [f"rows differ in {', '.join(differ)}: {advice}"] if differ else []


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return None if math.isnan(number) else number


def _read(file: str) -> tuple[list[str], list[Row]]:
    """Header and rows of a leaderboard; both empty without the file."""
    try:
        with open(file, encoding="utf-8", newline="") as stream:
            reader = csv.DictReader(stream)
            rows = [{unescaped(key): unescaped(value or "") for key, value in row.items() if key} for row in reader]
            header = [unescaped(name) for name in reader.fieldnames or []]
    except FileNotFoundError:
        return [], []
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise WorkspaceError(f"{file} cannot be read ({error}): move it and run the same command again") from error
    if header and not {"rank", "algorithm", "url"} <= set(header):
        raise WorkspaceError(f"{file} is not a leaderboard of Ianvs: move it and run the same command again")
    return header, rows


def _csv(names: list[str], rows: list[Row]) -> str:
    cells = ([str(i), *(row.get(name, "") for name in names)] for i, row in enumerate(rows, 1))
    return csv_text([["rank", *names], *cells])
