"""The SQLite file of a journal: schema, connection, and recovery of a damaged file.

``answers`` has a row per request: the answer (JSON of ``types.Completion``), or ``error`` and ``failures``; for a
judge, ``prompts`` and the ``rule`` that extracts the rating. ``configurations`` and ``machines`` are referenced by the
digest of their value. ``decisions`` has the seconds of routers, ``prefills`` prompts that were computed for their
hidden states.

The write-ahead log is not synced at every answer (``synchronous=NORMAL``): a killed process loses nothing, a power cut
at most the answers since the last ``checkpoint``. Rows have a checksum, as SQLite does not detect flipped bits.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ianvs_specdec.common.errors import UserError

log = logging.getLogger(__name__)

FILE_NAME = "journal.sqlite"
OLD_FILE_NAME = "journal.jsonl"
SYNC_SECONDS = 5.0
"""The first answer after this many seconds syncs the file."""
LOCK_SECONDS = 60.0
"""Timeout for another process's write."""

AHEAD, NEAR = 100, 10
"""A lookup at most NEAR rows after the previous one reads the next AHEAD rows at once."""
POLL_SECONDS = 0.01
HEADER = 100
"""Bytes of the SQLite header."""
MAX_CUT = 1000
"""A header with a size above this many times the file size is damaged itself."""
SHORTEST_ROW = 128
"""Least bytes of a row: recovery tries row ids up to the file size divided by this."""

SCHEMA = """
CREATE TABLE IF NOT EXISTS configurations (
    id TEXT PRIMARY KEY, model TEXT NOT NULL, value TEXT NOT NULL, files TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS machines (id TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS answers (
    id INTEGER PRIMARY KEY, key BLOB NOT NULL, configuration TEXT NOT NULL, prompt TEXT NOT NULL, run TEXT NOT NULL,
    side TEXT NOT NULL, machine TEXT NOT NULL, time REAL NOT NULL, prompts TEXT, rule TEXT, answer BLOB,
    error TEXT, failures TEXT, checksum INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS answers_by_key ON answers (key);
CREATE INDEX IF NOT EXISTS answers_by_prompt ON answers (prompt, configuration);
CREATE TABLE IF NOT EXISTS prefills (
    key BLOB NOT NULL, run TEXT NOT NULL, machine TEXT NOT NULL, prefill BLOB NOT NULL, checksum INTEGER NOT NULL,
    PRIMARY KEY (key, run)
);
CREATE TABLE IF NOT EXISTS decisions (
    key BLOB NOT NULL, run TEXT NOT NULL, seconds REAL NOT NULL, checksum INTEGER NOT NULL, PRIMARY KEY (key, run)
);
"""
TABLES = ("configurations", "machines", "answers", "decisions", "prefills")


def checksum(*columns: Any) -> int:
    """CRC-32 of columns."""
    return zlib.crc32(b"\0".join(c if isinstance(c, bytes) else repr(c).encode() for c in columns))


class Database:
    """Not thread-safe: the owner holds a lock. Several processes may open the same file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damaged = False
        self._connection: sqlite3.Connection | None = None
        self._synced = time.monotonic()

    def rows(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        """The rows of a SELECT; none without a file. Raises UserError if it cannot be read."""
        for _ in range(2):
            if self._connection is None and not self.path.exists():
                return []
            try:
                return self._open().execute(query, values).fetchall()
            except sqlite3.OperationalError as error:
                raise UserError(f"cannot read the journal {self.path}: {error}") from error
            except sqlite3.DatabaseError as error:
                self._save(error)
        return []

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction. Raises UserError."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            connection = self._open()
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise
        except (sqlite3.Error, OSError) as error:
            reason = getattr(error, "strerror", None) or error
            message = f"cannot write the journal {self.path}: {reason}. The answers already in it are kept."
            raise UserError(message) from error
        if time.monotonic() - self._synced > SYNC_SECONDS:
            self.checkpoint()

    def checkpoint(self) -> None:
        """Sync the file. A failure is a warning."""
        self._synced = time.monotonic()
        if self._connection is None:
            return
        try:
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.Error as error:
            log.warning("%s may not be on the disk: %s", self.path, error)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = _connected(self.path)
        return self._connection

    def _save(self, error: sqlite3.DatabaseError) -> None:
        """Replace a damaged file by a new one with the readable rows."""
        self.damaged = True
        self.close()
        old = self.path.with_name(f"{self.path.name}.damaged")
        with suppress(OSError):
            Path(f"{self.path}-shm").unlink(missing_ok=True)
            # The write-ahead log may have newer answers.
            with suppress(FileNotFoundError):
                os.replace(f"{self.path}-wal", f"{old}-wal")
            os.replace(self.path, old)
            _padded(old)
        with self.writing() as connection:
            saved = sum(_copied(old, table, connection) for table in TABLES)
        log.warning(
            "journal %s: damaged (%s); %d of its entries were recovered, missing answers are generated again. The "
            "damaged file is %s",
            self.path,
            error,
            saved,
            old.name,
        )


class Newest:
    """The newest row of each key of a table. Rows are read ahead, as most keys are looked up in the order of the
    rows."""

    def __init__(self, database: Database, table: str, columns: str, run: str | None, among: str = "TRUE") -> None:
        """Only rows that satisfy the condition ``among``, and of ``run`` unless None."""
        self._database, self._last = database, 0
        self._ahead: dict[bytes, Any] = {}
        self._run = () if run is None else (run,)
        among += "" if run is None else " AND run = ?"
        self._find = f"SELECT rowid, {columns} FROM {table} WHERE key = ? AND {among} ORDER BY rowid DESC LIMIT 1"
        newer = f"SELECT 1 FROM {table} n WHERE n.key = {table}.key AND n.rowid > {table}.rowid AND {among}"
        self._next = (
            f"SELECT key, rowid, {columns} FROM {table} WHERE rowid > ? AND {among} AND NOT EXISTS ({newer}) "
            f"ORDER BY rowid LIMIT {AHEAD}"
        )

    def get(self, key: bytes) -> Any:
        """The columns of the row; None without one."""
        row = self._ahead.get(key)
        if row is None:
            row = next(iter(self._database.rows(self._find, (key, *self._run))), None)
            if row is None:
                return None
            if 0 < row[0] - self._last <= NEAR:
                rows = self._database.rows(self._next, (row[0], *self._run, *self._run))
                self._ahead = {found[0]: found[1:] for found in rows}
        self._last = row[0]
        return row[1:]

    def forget(self, key: bytes) -> None:
        """Discard the cached row of this key."""
        self._ahead.pop(key, None)


def _connected(path: Path) -> sqlite3.Connection:
    options: dict[str, Any] = {"timeout": LOCK_SECONDS, "isolation_level": None, "check_same_thread": False}
    connection = sqlite3.connect(path, **options)
    try:
        _prepare(connection)
        return connection
    except sqlite3.OperationalError:
        connection.close()
        if os.access(path.parent, os.W_OK) or not path.exists():
            raise
    # In a read-only folder, SQLite cannot create the files that readers share.
    return sqlite3.connect(f"{path.absolute().as_uri()}?immutable=1", uri=True, **options)


def _prepare(connection: sqlite3.Connection) -> None:
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            connection.execute("PRAGMA synchronous=NORMAL")
            # Does not wait for another process that creates the same file.
            connection.execute("PRAGMA journal_mode=WAL")
            connection.executescript(SCHEMA)
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(POLL_SECONDS)


def _padded(path: Path) -> None:
    """Fill a truncated file with zeros: SQLite reads no page of a file shorter than in its header."""
    with path.open("r+b") as file:
        header, size = file.read(HEADER), path.stat().st_size
        whole = int.from_bytes(header[16:18], "big") * int.from_bytes(header[28:32], "big")
        if header.startswith(b"SQLite format 3") and size < whole < MAX_CUT * size:
            file.truncate(whole)


def _copied(old: Path, table: str, into: sqlite3.Connection) -> int:
    """Copy the readable rows of a table one by one. Returns their number."""
    copied, last = 0, 0
    source = sqlite3.connect(old, isolation_level=None)
    try:
        source.execute("SELECT count(*) FROM sqlite_master")
        while last <= old.stat().st_size // SHORTEST_ROW:
            try:
                row = source.execute(f"SELECT rowid, * FROM {table} WHERE rowid > ? LIMIT 1", (last,)).fetchone()
                if row is None:
                    break
                marks = ",".join("?" * len(row[1:]))
                copied += into.execute(f"INSERT OR IGNORE INTO {table} VALUES ({marks})", row[1:]).rowcount
                last = max(last + 1, row[0])
            except sqlite3.DatabaseError:
                last += 1
    except sqlite3.DatabaseError:
        pass  # the list of tables is unreadable
    finally:
        source.close()
    return copied
