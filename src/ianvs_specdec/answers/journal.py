"""The journal of answers: nothing that a model was asked is lost, and nothing is asked twice.

One append-only file of JSON lines, ``<workspace>/<job>/journal.jsonl``, shared by the edge model, the cloud model and
all test cases of a job. ``lines`` says what its lines look like.

Every line is appended by one write under a file lock, and a process that is killed loses at most the line it was
writing (``storage.lines``). One run at a time asks: it claims the job's folder before it does (``storage.claim``), and
its processes and threads share the journal. Reading keeps only keys and offsets: an answer is parsed when it is asked
for, and one of whose fields is not what it should be counts as damaged.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ianvs_specdec.answers.configuration import ID_DIGITS, Configuration, changes_of, prompt_id
from ianvs_specdec.answers.lines import (
    FILE_NAME,
    Prefill,
    answer_in,
    answer_line,
    configuration_line,
    failure_line,
    hardware_line,
    head_of,
    is_failure,
    prefill_in,
    probed_line,
    probed_of,
    record_in,
    record_of,
    routed_line,
    routed_of,
)
from ianvs_specdec.errors import AnswerError, UserError
from ianvs_specdec.identity import digest
from ianvs_specdec.run import current_run, job_folder
from ianvs_specdec.storage.claim import Claim, claim
from ianvs_specdec.storage.lines import LineFile
from ianvs_specdec.types import Completion, Message

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Entry:
    """An answer found in the journal. ``replayed``: it was made by an earlier run, not by the one in progress."""

    completion: Completion
    hardware: str
    replayed: bool


@dataclass(frozen=True)
class KeptPrefill:
    """A prefill found in the journal; see ``Entry``."""

    prefill: Prefill
    hardware: str
    replayed: bool


class Journal:
    """The answers of one job. Thread-safe; several processes may hold the same file."""

    _open: ClassVar[dict[tuple[Path, str, bool], Journal]] = {}
    _opening = threading.Lock()

    def __init__(self, path: Path, run: str, fresh: bool = False) -> None:
        self.path, self.run, self.fresh = path, run, fresh
        self.corrupt = 0
        self._answers: dict[bytes, tuple[int, int, bool]] = {}
        self._earlier: dict[str, set[str]] = {}
        self._records: dict[str, tuple[int, int]] = {}
        self._overheads: dict[bytes, float] = {}
        self._prefills: dict[bytes, tuple[int, int, bool]] = {}
        self._explained: set[str] = set()
        self._asked: dict[str, tuple[threading.Lock, int]] = {}
        self._scanned = 0
        self._writable = False
        self._mutex = threading.RLock()
        self._file = LineFile(path)
        self._claim: Claim | None = None

    @classmethod
    def of_job(cls) -> Journal:
        """The journal of the running job; one object per file and run."""
        run, fresh = current_run()
        handle = (job_folder() / FILE_NAME, run, fresh)
        with cls._opening:
            if handle not in cls._open:
                cls._open[handle] = cls(*handle)
            return cls._open[handle]

    # reading

    def get(self, key: str) -> Entry | None:
        """The newest answer with this key, or None. A line that turns out to be damaged counts as no answer."""
        with self._mutex:
            found = self._answers.get(bytes.fromhex(key))
            if found is None:
                self._scan()
                found = self._answers.get(bytes.fromhex(key))
            if found is None:
                return None
            answer = answer_in(self._read(*found[:2]))
            if answer is None:
                self._count_corrupt(found[0])
                del self._answers[bytes.fromhex(key)]
                return None
            return Entry(*answer, found[2])

    def record(self, record_id: str) -> dict[str, Any] | None:
        """A configuration or machine by its id: ``{"value": ..., ...}``; None if its line is missing or damaged."""
        with self._mutex:
            self._scan()
            place = self._records.get(record_id)
            return None if place is None else record_in(self._read(*place))

    def overhead(self, key: str) -> float | None:
        """The seconds that a router took for the decision with this key; None if they are not known."""
        with self._mutex:
            self._scan()
            return self._overheads.get(bytes.fromhex(key))

    def prefill(self, key: str) -> KeptPrefill | None:
        """The prompt that was read with this key, or None. A line that is damaged counts as none."""
        with self._mutex:
            self._scan()
            found = self._prefills.get(bytes.fromhex(key))
            if found is None:
                return None
            prefill = prefill_in(self._read(*found[:2]))
            if prefill is None:
                self._count_corrupt(found[0])
                del self._prefills[bytes.fromhex(key)]
                return None
            return KeptPrefill(*prefill, found[2])

    def __len__(self) -> int:
        """Number of different requests with an answer."""
        with self._mutex:
            self._scan()
            return len(self._answers)

    def _read(self, offset: int, length: int) -> bytes:
        try:
            with self.path.open("rb") as file:
                file.seek(offset)
                return file.read(length)
        except OSError as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: OSError) -> UserError:
        return UserError(f"cannot read the journal {self.path}: {error.strerror or error}")

    def _scan(self) -> None:
        """Index the complete lines that were added since the last scan, by this process or another."""
        try:
            if self.path.stat().st_size <= self._scanned:
                return
            with self.path.open("rb") as file:
                offset = file.seek(self._scanned)
                for line in file:
                    # Without a line end: torn, or still being written. The next scan or the next append decides.
                    if not line.endswith(b"\n"):
                        break
                    self._index(line, offset)
                    offset += len(line)
            self._scanned = offset
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._unreadable(error) from error

    def _index(self, line: bytes, offset: int) -> None:
        if head := head_of(line):
            replayed = head.run != self.run
            if replayed and self.fresh:
                return
            self._answers[bytes.fromhex(head.key)] = (offset, len(line), replayed)
            if replayed:
                self._earlier.setdefault(head.config, set()).add(head.prompt)
        elif record := record_of(line):
            self._records[record[1]] = (offset, len(line))
        elif routed := routed_of(line):
            if not self.fresh or routed[1] == self.run:
                self._overheads[bytes.fromhex(routed[0])] = routed[2]
        elif probed := probed_of(line):
            replayed = probed[1] != self.run
            if not (replayed and self.fresh):
                self._prefills[bytes.fromhex(probed[0])] = (offset, len(line), replayed)
        elif line.strip() and not is_failure(line):
            self._count_corrupt(offset)

    def _count_corrupt(self, offset: int) -> None:
        self.corrupt += 1
        if self.corrupt == 1:
            log.warning(
                "journal %s: a damaged line at byte %d is ignored; its answer is asked for again", self.path, offset
            )

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
        """Append an answer, a judge's with how it was ``judged``; returns the id of the hardware record. Raises
        UserError if it cannot be written whole.
        """
        hardware_id = digest(hardware)[:ID_DIGITS]
        # Made before the lock is taken: other threads wait for it.
        key = configuration.key(messages, prediction)
        told = {"run": self.run, "side": side, "hardware": hardware_id}
        answer = answer_line(key, configuration, messages, completion, judged=judged, **told)
        lines = []
        with self._mutex:
            self._scan()
            if configuration.id not in self._records:
                lines.append(configuration_line(configuration))
            if hardware_id not in self._records:
                lines.append(hardware_line(hardware_id, hardware))
            self._append(b"".join([*lines, answer]))
            self._scan()
        return hardware_id

    def put_failure(self, key: str, error: AnswerError, *, side: str) -> None:
        """Append that a request got no answer, and why. Raises UserError if it cannot be written whole."""
        line = failure_line(key, error, run=self.run, side=side)
        with self._mutex:
            self._append(line)

    def put_overhead(self, key: str, seconds: float) -> None:
        """Append a router's time for a decision, unless it is there. Raises UserError if it cannot be written whole."""
        with self._mutex:
            if self._overheads.get(bytes.fromhex(key)) != seconds:
                self._append(routed_line(key, seconds, run=self.run))
                self._scan()

    def put_prefill(self, key: str, prefill: Prefill, *, hardware: Mapping[str, Any]) -> str:
        """Append a prompt that was read; returns the id of the hardware record. Raises UserError if it cannot be
        written whole."""
        hardware_id = digest(hardware)[:ID_DIGITS]
        line = probed_line(key, prefill, run=self.run, hardware=hardware_id)
        with self._mutex:
            self._scan()
            known = hardware_id in self._records
            self._append(line if known else hardware_line(hardware_id, hardware) + line)
            self._scan()
        return hardware_id

    @contextmanager
    def asking(self, key: str) -> Iterator[None]:
        """While one thread asks for the answer with this key, others who want it wait here: it is not asked twice."""
        with self._mutex:
            lock, waiting = self._asked.get(key, (threading.Lock(), 0))
            self._asked[key] = lock, waiting + 1
        try:
            with lock:
                yield
        finally:
            with self._mutex:
                lock, waiting = self._asked.pop(key)
                if waiting > 1:
                    self._asked[key] = lock, waiting - 1

    def ensure_writable(self) -> None:
        """Raise UserError if answers cannot be kept here, or if another run is asking. Called before a model is loaded,
        not after it has worked. After an answer has been written, nothing is tried until one could not be.
        """
        with self._mutex:
            if not self._writable:
                self._append(b"")
            if self._claim is None:
                with self._keeping():
                    self._claim = claim(self.path.parent, self.run)
                # The run that held it until now may have asked the same.
                self._scan()

    def _append(self, data: bytes) -> None:
        """The mutex is held."""
        self._writable = False
        with self._keeping():
            self._file.append(data)
        self._writable = bool(data)

    @contextmanager
    def _keeping(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = error.strerror or error
            message = f"cannot write the journal {self.path}: {reason}. The answers already in it are kept."
            raise UserError(message) from error

    def rest(self) -> None:
        """Nothing is asked for the time being: force what was answered onto the disk, and let other runs ask."""
        with self._mutex:
            self._claim = None
        self._file.sync()

    # saying why nothing matches

    def explain_miss(self, configuration: Configuration, messages: list[Message]) -> str | None:
        """Why earlier answers to these messages do not serve, in one line; None if there are none. Once a
        configuration.

        Of the configurations in which earlier runs answered the same messages, the nearest one is named: how many
        answers it has, and which keys differ.
        """
        with self._mutex:
            # Of a further repeat nothing else is to be expected.
            if configuration.id in self._explained or configuration.value.get("repeat"):
                return None
            self._explained.add(configuration.id)
            self._scan()
            prompt = prompt_id(messages)
            if configuration.id in self._earlier:
                return None
            nearest: tuple[int, int, str] | None = None
            for config, prompts in self._earlier.items():
                record = self.record(config)
                if prompt not in prompts or record is None:
                    continue
                changes = changes_of(record, configuration)
                candidate = (len(changes), -len(prompts), ", ".join(changes))
                nearest = min(nearest, candidate) if nearest else candidate
        if nearest is None:
            return None
        return f"{-nearest[1]} earlier answers in {self.path} do not match and are asked for again: {nearest[2]}"
