"""Synchronization of the plugins' journal with workers.

To the host, the journal is the SQLite file ``journal.sqlite`` in the job's folder, whose tables only get new rows.
Workers have copies; the rows that they add are merged.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

from core.common.errors import WorkspaceError
from core.common.files import make_folder

BLOCK = 10_000
"""Maximum rows of a piece."""
LOCK_SECONDS = 60.0

Piece = tuple[str, list[tuple[Any, ...]]]
"""The CREATE statement of a table, and rows of it, each preceded by its rowid."""


class Journal:
    """Not thread-safe. Methods raise WorkspaceError if the file cannot be read or written."""

    def __init__(self, folder: str) -> None:
        self.path = os.path.join(folder, "journal.sqlite")
        self._read: dict[str, int] = {}

    def added(self) -> Iterator[Piece]:
        """The rows added since the last call, in pieces: a journal may be larger than the memory."""
        if not os.path.exists(self.path):
            return
        with self._open() as connection:
            for table, statement in connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'"):
                select = f"SELECT rowid, * FROM {table} WHERE rowid > ? ORDER BY rowid LIMIT {BLOCK}"
                while rows := connection.execute(select, (self._read.get(table, 0),)).fetchall():
                    self._read[table] = rows[-1][0]
                    yield statement, rows

    def skip(self) -> None:
        """Mark all rows as read."""
        for _ in self.added():
            pass

    def add(self, pieces: Iterable[Piece]) -> None:
        """Add rows of another journal, except those with an existing key."""
        make_folder(os.path.dirname(self.path))
        with self._open() as connection:
            connection.execute("BEGIN IMMEDIATE")
            for statement, rows in pieces:
                _add(connection, statement, rows)
            connection.execute("COMMIT")

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(sqlite3.connect(self.path, timeout=LOCK_SECONDS, isolation_level=None)) as connection:
                connection.execute("PRAGMA journal_mode=WAL")
                yield connection
        except sqlite3.Error as error:
            raise WorkspaceError(f"cannot use {self.path}: {error}") from error


def _add(connection: sqlite3.Connection, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
    table = statement.split("(")[0].split()[-1]
    connection.execute(statement.replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS", 1))
    columns = connection.execute(f"PRAGMA table_info({table})").fetchall()
    # A rowid that is a column is assigned anew.
    named = [name for _, name, kind, _, _, key in columns if not (key and kind == "INTEGER")]
    unnamed = len(columns) - len(named)
    marks = ", ".join("?" * len(named))
    insert = f"INSERT OR IGNORE INTO {table} ({', '.join(named)}) VALUES ({marks})"
    connection.executemany(insert, [row[1 + unnamed :] for row in rows])
