"""The journal: all answers of a job, so that no answer is lost when a process ends, or generated twice.

It is the SQLite file ``<workspace>/<job>/journal.sqlite`` (see ``database``), shared by both models, all test cases,
and the processes and threads of a run. One run at a time sends requests: it claims the job's folder first
(``common.storage.folder_lock``).
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from ianvs_specdec.common.errors import AnswerError, UserError
from ianvs_specdec.common.storage.folder_lock import FolderLock, lock_folder
from ianvs_specdec.common.types import Amount, Completion, Count, Energy, Message
from ianvs_specdec.records.configuration import ID_DIGITS, Configuration, changes_of, prompt_id
from ianvs_specdec.records.database import FILE_NAME, OLD_FILE_NAME, Database, Newest, checksum
from ianvs_specdec.records.identity import digest
from ianvs_specdec.records.run import current_run, job_folder

log = logging.getLogger(__name__)

_encode = msgspec.json.Encoder().encode
decode_answer = msgspec.json.Decoder(Completion).decode


@dataclass(frozen=True)
class Entry:
    """An answer in the journal. ``replayed``: it is of an earlier run."""

    completion: Completion
    hardware: str
    replayed: bool


class Prefill(msgspec.Struct, frozen=True):
    """A prompt computed for its hidden ``states``, little-endian float16 [layers, 2 * hidden]. ``issued``: Unix
    time."""

    states: bytes
    prompt_tokens: Count
    seconds: Amount
    issued: Amount
    energy: Energy | None = None


@dataclass(frozen=True)
class StoredPrefill:
    """A prefill in the journal; see ``Entry``."""

    prefill: Prefill
    hardware: str
    replayed: bool


class Journal:
    """The answers of a job. Thread-safe; several processes may open the same file."""

    _open: ClassVar[dict[tuple[Path, str, bool], Journal]] = {}
    _opening = threading.Lock()

    def __init__(self, path: Path, run: str, fresh: bool = False) -> None:
        self.path, self.run, self.fresh = path, run, fresh
        self.corrupt = 0
        self._database = database = Database(path)
        own = run if fresh else None
        columns = "configuration, side, run, machine, answer, checksum"
        self._answers = Newest(database, "answers", columns, own, "answer NOTNULL")
        self._decisions = Newest(database, "decisions", "run, seconds, checksum", own)
        self._prefills = Newest(database, "prefills", "run, machine, prefill, checksum", own)
        self._known: set[str] = set()
        self._served: set[tuple[str, str]] = set()
        self._explained: set[str] = set()
        self._request_locks: dict[str, tuple[threading.Lock, int]] = {}
        self._mutex = threading.RLock()
        self._claim: FolderLock | None = None

    @classmethod
    def of_job(cls) -> Journal:
        """The journal of the current job; one object per file and run."""
        run, fresh = current_run()
        folder = job_folder()
        handle = (folder / FILE_NAME, run, fresh)
        with cls._opening:
            if handle not in cls._open:
                if (old := folder / OLD_FILE_NAME).exists() and not handle[0].exists():
                    log.warning("%s is of an older version and is not read: its answers are generated again", old)
                cls._open[handle] = cls(*handle)
            return cls._open[handle]

    # reading

    def get(self, key: str) -> Entry | None:
        """The newest answer with this key, or None. Damaged ones are ignored."""
        with self._mutex:
            if (row := self._intact(self._answers, key, 2)) is not None:
                configuration, side, run, machine, answer = row
                with suppress(msgspec.DecodeError):
                    entry = Entry(decode_answer(answer), machine, run != self.run)
                    self._served.add((configuration, side))
                    return entry
                self._count_damage()
        return None

    def record(self, record_id: str) -> dict[str, Any] | None:
        """A configuration or machine by its id: ``{"value": ..., ...}``; None if missing or damaged."""
        with self._mutex:
            for model, text, files in self._database.rows(_RECORD, (record_id, record_id)):
                if (value := value_of(record_id, text)) is not None:
                    return {"model": model, "value": value, "files": json.loads(files)}
                self._count_damage()
        return None

    def overhead(self, key: str) -> float | None:
        """The router's seconds for the decision with this key; None if unknown."""
        with self._mutex:
            row = self._intact(self._decisions, key)
        return None if row is None else float(row[1])

    def prefill(self, key: str) -> StoredPrefill | None:
        """The prefill with this key, or None. Damaged ones are ignored."""
        with self._mutex:
            if (row := self._intact(self._prefills, key)) is None:
                return None
            run, machine, prefill = row
            return StoredPrefill(msgspec.json.decode(prefill, type=Prefill), machine, run != self.run)

    def __len__(self) -> int:
        """Number of distinct requests with an answer."""
        with self._mutex:
            rows = self._database.rows("SELECT count(DISTINCT key) FROM answers WHERE answer NOTNULL")
            return int(rows[0][0]) if rows else 0

    def _intact(self, newest: Newest, key: str, unchecked: int = 0) -> Any:
        """The newest row of this key; None if damaged. The checksum excludes the first ``unchecked`` columns."""
        row = newest.get(bytes.fromhex(key))
        if row is None or row[-1] == checksum(bytes.fromhex(key), *row[unchecked:-1]):
            return row and row[:-1]
        self._count_damage()
        return None

    def _count_damage(self) -> None:
        self.corrupt += 1
        if self.corrupt == 1 and not self._database.damaged:
            log.warning("journal %s: a damaged entry is ignored; its answer is generated again", self.path)

    # writing

    def put(
        self,
        configuration: Configuration,
        messages: list[Message],
        completion: Completion,
        *,
        side: str,
        hardware: Mapping[str, Any],
        prediction: str = "",
        judged: Mapping[str, str] | None = None,
    ) -> str:
        """Store an answer. ``judged``: ``prompts`` and ``rule`` of a judge's answer. Returns the id of the hardware
        record. Raises UserError."""
        hardware_id = digest(hardware)[:ID_DIGITS]
        # Computed without the lock.
        key = bytes.fromhex(configuration.key(messages, prediction))
        answer = _encode(completion)
        check = checksum(key, self.run, hardware_id, answer)
        rated = judged or {}
        row = (key, configuration.id, prompt_id(messages), self.run, side, hardware_id, time.time())
        with self._mutex, self._database.writing() as connection:
            self._answers.forget(key)
            if not {configuration.id, hardware_id} <= self._known:
                value, files = json.dumps(configuration.value), json.dumps(configuration.files)
                what = (configuration.id, configuration.model, value, files)
                connection.execute("INSERT OR REPLACE INTO configurations VALUES (?, ?, ?, ?)", what)
                machine = (hardware_id, json.dumps(hardware))
                connection.execute("INSERT OR REPLACE INTO machines VALUES (?, ?)", machine)
            connection.execute(_INSERT, (*row, rated.get("prompts"), rated.get("rule"), answer, None, None, check))
            self._known |= {configuration.id, hardware_id}
        return hardware_id

    def put_failure(self, key: str, error: AnswerError, *, side: str) -> None:
        """Store the error of a request without an answer. Raises UserError."""
        message, attempts = str(error), json.dumps([[round(seconds, 3), what] for seconds, what in error.failures])
        row = (bytes.fromhex(key), "", "", self.run, side, "", time.time(), None, None, None, message, attempts)
        with self._mutex, self._database.writing() as connection:
            connection.execute(_INSERT, (*row, checksum(message, attempts)))

    def put_overhead(self, key: str, seconds: float) -> None:
        """Store a router's seconds for a decision, if new. Raises UserError."""
        with self._mutex:
            if self.overhead(key) != seconds:
                row = (bytes.fromhex(key), self.run, seconds, checksum(bytes.fromhex(key), self.run, seconds))
                self._decisions.forget(row[0])
                with self._database.writing() as connection:
                    connection.execute("INSERT OR REPLACE INTO decisions VALUES (?, ?, ?, ?)", row)

    def put_prefill(self, key: str, prefill: Prefill, *, hardware: Mapping[str, Any]) -> str:
        """Store a prefill. Returns the id of the hardware record. Raises UserError."""
        hardware_id, encoded = digest(hardware)[:ID_DIGITS], _encode(prefill)
        row = (bytes.fromhex(key), self.run, hardware_id, encoded)
        with self._mutex, self._database.writing() as connection:
            self._prefills.forget(row[0])
            connection.execute("INSERT OR REPLACE INTO machines VALUES (?, ?)", (hardware_id, json.dumps(hardware)))
            connection.execute("INSERT OR REPLACE INTO prefills VALUES (?, ?, ?, ?, ?)", (*row, checksum(*row)))
        return hardware_id

    @contextmanager
    def request_lock(self, key: str) -> Iterator[None]:
        """Lock of the requests with this key: other threads wait, so that an answer is not generated twice."""
        with self._mutex:
            lock, waiting = self._request_locks.get(key, (threading.Lock(), 0))
            self._request_locks[key] = lock, waiting + 1
        try:
            with lock:
                yield
        finally:
            with self._mutex:
                lock, waiting = self._request_locks.pop(key)
                if waiting > 1:
                    self._request_locks[key] = lock, waiting - 1

    def ensure_writable(self) -> None:
        """Raise UserError if answers cannot be stored or another run has claimed the folder."""
        with self._mutex:
            if self._claim is None:
                with self._database.writing():
                    pass
                try:
                    self._claim = lock_folder(self.path.parent, self.run)
                except OSError as error:
                    raise UserError(f"cannot write the journal {self.path}: {error.strerror or error}") from error

    def release(self) -> None:
        """Sync the file and release the claim, so that other runs can send requests."""
        with self._mutex:
            self._claim = None
            self._database.checkpoint()

    # explanation of misses

    def explain_miss(self, configuration: Configuration, messages: list[Message], side: str) -> str | None:
        """Why earlier answers of this ``side`` to these messages do not match, in one line, once per configuration;
        None if there are none.

        It names the most similar configuration in which earlier runs answered the same messages and which this run does
        not use: its number of answers, and the keys that differ.
        """
        with self._mutex:
            # Further repeats have no earlier answers.
            if configuration.id in self._explained or configuration.value.get("repeat") or self.fresh:
                return None
            self._explained.add(configuration.id)
            if self._database.rows(_ANSWERED, (configuration.id, self.run)):
                return None
            nearest: tuple[int, int, str] | None = None
            for config, prompts in self._database.rows(_EARLIER, (self.run, side, prompt_id(messages), self.run)):
                record = None if (config, side) in self._served else self.record(config)
                if record is None or (changes := changes_of(record, configuration)) is None:
                    continue
                candidate = (len(changes), -prompts, ", ".join(changes))
                nearest = min(nearest, candidate) if nearest else candidate
        if nearest is None:
            return None
        return f"{-nearest[1]} earlier answers in {self.path} do not match and are generated again: {nearest[2]}"


_INSERT = """
INSERT INTO answers (
    key, configuration, prompt, run, side, machine, time, prompts, rule, answer, error, failures, checksum
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_RECORD = """
SELECT model, value, files FROM configurations WHERE id = ? UNION SELECT '', value, '{}' FROM machines WHERE id = ?
"""
_EARLIER = """
SELECT configuration, count(DISTINCT prompt) FROM answers
WHERE run != ? AND side = ? AND answer NOTNULL
    AND configuration IN (SELECT configuration FROM answers WHERE prompt = ? AND run != ?)
GROUP BY configuration
"""
_ANSWERED = "SELECT 1 FROM answers WHERE configuration = ? AND run != ? AND answer NOTNULL LIMIT 1"


def value_of(record_id: str, text: str) -> dict[str, Any] | None:
    """The value of a configuration or machine; None if its digest is not this id."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and digest(value)[:ID_DIGITS] == record_id else None


def read_answers(path: Path) -> Iterator[Completion]:
    """All answers of a journal's file, in order."""
    for row in _rows_of(Database(path), "answers"):
        if row["answer"] is not None:
            with suppress(msgspec.DecodeError):
                yield decode_answer(row["answer"])


def export_entries(path: Path) -> Iterator[dict[str, Any]]:
    """The content of a journal's file as JSON objects: configurations, machines, then answers and failures."""
    database = Database(path)
    for row in _rows_of(database, "configurations"):
        value, files = json.loads(row["value"]), json.loads(row["files"])
        yield {"configuration": row["id"], "model": row["model"], "value": value, "files": files}
    for row in _rows_of(database, "machines"):
        yield {"machine": row["id"], "value": json.loads(row["value"])}
    for row in _rows_of(database, "answers"):
        entry = {name: value for name, value in row.items() if value not in (None, "") and name != "checksum"}
        for name in ("answer", "failures"):
            if name in entry:
                entry[name] = json.loads(entry[name])
        yield {**entry, "key": row["key"].hex()}


def _rows_of(database: Database, table: str) -> Iterator[dict[str, Any]]:
    last, columns = 0, [name for _, name, *_ in database.rows(f"PRAGMA table_info({table})")]
    while rows := database.rows(f"SELECT rowid, * FROM {table} WHERE rowid > ? ORDER BY rowid LIMIT 100", (last,)):
        yield from (dict(zip(columns, row[1:], strict=True)) for row in rows)
        last = rows[-1][0]
