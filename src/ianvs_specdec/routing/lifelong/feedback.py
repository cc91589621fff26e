"""Feedback on answers, and its log.

One feedback is a JSON object: ``query_id`` (or ``query``: the question, or its first turn), ``side`` (``edge`` or
``cloud``), and ``score``, from 0 to 1, or ``thumb``: ``up`` or ``down``. Other keys are ignored.

The log has a line for each feedback that was received at an endpoint and one for each that was learned, so that a run
that is resumed or repeated learns the same at the same places.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, TypeGuard

import msgspec
from pydantic import Field

from ianvs_specdec.common.errors import UserError, unknown
from ianvs_specdec.common.settings import Settings, Text
from ianvs_specdec.common.storage.folder_lock import lock_folder
from ianvs_specdec.common.storage.lines import LineFile
from ianvs_specdec.routing.learned.online import SIDES

log = logging.getLogger(__name__)

THUMBS = {"up": 1.0, "down": 0.0}
SCORER = "scorer:"
"""Begins the source of feedback by the benchmark's scorer, which comes again in each run."""
LONGEST = 65536
"""Bytes of one feedback."""
LOOPBACK = "127.0.0.1"
"""Where an endpoint listens if it is not told."""


def named(text: str) -> str:
    """A digest in place of a text, which does not belong into a log."""
    return "text:" + hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


class Feedback(msgspec.Struct, frozen=True, omit_defaults=True):
    """``query``: its id, or its text as ``named``; ``source``: a unique name; ``model``: whose answer it is on."""

    query: str
    side: Literal["edge", "cloud"]
    score: Annotated[float, msgspec.Meta(ge=0, le=1)]
    source: str = ""
    model: str = ""

    @classmethod
    def parse(cls, record: Any, where: str) -> Feedback:
        """Raises UserError that begins with ``where``."""
        if not isinstance(record, Mapping):
            raise UserError(f"{where}: a feedback must be an object, not {type(record).__name__}")
        name = record.get("query_id")
        if name is None:
            name = record.get("query")
            turns = name.get("turns") if isinstance(name, Mapping) else None
            name = turns[0] if isinstance(turns, list) and turns else name
            name = named(name) if isinstance(name, str) and name else None
        if isinstance(name, bool) or not isinstance(name, (str, int)) or not str(name):
            raise UserError(f"{where}: query_id is missing (or query, the question's text)")
        if record.get("side") not in SIDES:
            raise UserError(f"{where}: {unknown('side', record.get('side'), SIDES)}")
        score = record.get("score")
        thumb = record.get("thumb")
        if score is None and isinstance(thumb, str):
            score = THUMBS.get(thumb)
        if not _is_score(score):
            raise UserError(f"{where}: score must be a number from 0 to 1, or thumb up or down")
        return cls(str(name), record["side"], float(score), where)


def _is_score(value: Any) -> TypeGuard[float]:
    return not isinstance(value, bool) and isinstance(value, (int, float)) and 0 <= value <= 1


class FeedbackFile:
    """A file of JSON lines that may grow while it is read. Damaged lines are counted, and the first is logged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damaged = 0
        self._line = 0
        self._offset = 0

    def new(self) -> Iterator[Feedback]:
        """The lines added since. A last line without its end is read when it is whole."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                # Of a line that is too long the rest counts as the next one.
                while (line := file.readline(LONGEST + 1)).endswith(b"\n") or len(line) > LONGEST:
                    self._offset += len(line)
                    yield from self._parsed(line.removesuffix(b"\n"))
        except FileNotFoundError:
            return
        except OSError as error:
            raise UserError(
                f"feedback {self.path} cannot be read: {error.strerror or error}", key="feedback"
            ) from error

    def _parsed(self, line: bytes) -> Iterator[Feedback]:
        self._line += 1
        if not line.strip():
            return
        where = f"{self.path.name}:{self._line}"
        try:
            if len(line) > LONGEST:
                raise UserError(f"{where}: longer than {LONGEST} bytes")
            yield Feedback.parse(json.loads(line), where)
        except (ValueError, UserError, RecursionError) as error:
            self.damaged += 1
            if self.damaged == 1:
                reason = error if isinstance(error, UserError) else f"{where}: not JSON"
                log.warning("feedback: a line is ignored, as will be others like it: %s", reason)


class LogLine(Feedback, frozen=True, omit_defaults=True, kw_only=True):
    """A feedback that was received, or the ``learned``-th that was learned, after ``answers`` answers."""

    run: str
    learned: int | None = None
    answers: int = 0


class FeedbackLog:
    """JSON lines in the job's folder, appended only. Without a ``path``, outside of a job, nothing is kept.

    ``earlier``: feedback that runs before this one learned, in order, without the scorer's, which comes again;
    ``waiting``: what they received and did not learn; ``receipts``: how many they received.
    """

    def __init__(self, path: Path | None, run: str, fresh: bool = False) -> None:
        self.path, self.run = path, run
        self.earlier: list[LogLine] = []
        self.waiting: dict[str, Feedback] = {}
        self._learned: set[str] = set()
        self.receipts = 0
        self._file = None if path is None else LineFile(path)
        if path is not None:
            with self._keeping():
                path.parent.mkdir(parents=True, exist_ok=True)
                self._claim = lock_folder(path.parent, run)
                self._read(path, fresh)
        self.earlier.sort(key=lambda line: (line.answers, line.learned))

    def received(self, feedback: Feedback) -> None:
        self._append(LogLine(*_fields(feedback), run=self.run))

    def learned(self, feedback: Feedback, answers: int, count: int) -> None:
        """Keep after how many answers and feedbacks a feedback was learned, unless that is known."""
        if feedback.source not in self._learned:
            self._append(LogLine(*_fields(feedback), run=self.run, learned=count, answers=answers))

    def sync(self) -> None:
        if self._file is not None:
            self._file.sync()

    def _read(self, path: Path, fresh: bool) -> None:
        """A ``fresh`` run ignores all lines but its own."""
        damaged = 0
        for line in path.read_bytes().splitlines() if path.exists() else ():
            try:
                kept = msgspec.json.decode(line, type=LogLine)
            except (msgspec.DecodeError, RecursionError):
                damaged += bool(line.strip())
                continue
            if kept.run == self.run or not fresh:
                self._take_in(kept)
        if damaged:
            log.warning("%s: %d damaged line%s ignored", path, damaged, "s"[: damaged != 1])

    def _take_in(self, kept: LogLine) -> None:
        if kept.learned is None:
            self.waiting[kept.source] = Feedback(*_fields(kept))
            self.receipts += 1
            return
        self.waiting.pop(kept.source, None)
        if kept.source not in self._learned and not kept.source.startswith(SCORER):
            self.earlier.append(kept)
        self._learned.add(kept.source)

    def _append(self, line: LogLine) -> None:
        if self._file is not None:
            with self._keeping():
                self._file.append(msgspec.json.encode(line) + b"\n")

    @contextmanager
    def _keeping(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UserError(
                f"feedback cannot be kept in {self.path}: {error.strerror or error}", key="feedback"
            ) from error


def _fields(feedback: Feedback) -> tuple[Any, ...]:
    return feedback.query, feedback.side, feedback.score, feedback.source, feedback.model


class Endpoint(Settings):
    """Where feedback is taken over HTTP."""

    noun = "key of feedback"

    port: int = Field(ge=0, le=65535, description="a number, 0 for any that is free")
    token_env: Text | None = None
    host: str | None = None


def check_feedback(value: Any) -> None:
    """Raise UserError if ``value`` is no source of feedback: ``scorer``, a file, or a mapping with ``port``."""
    if isinstance(value, str) and value:
        if value != "scorer" and os.path.isdir(value):
            raise UserError(f"feedback {value} is a folder: give a file of JSON lines", key="feedback")
        if value != "scorer" and not value.endswith(".jsonl"):
            raise UserError(f"feedback must be scorer, or a file that ends in .jsonl, not {value!r}", key="feedback")
        return
    if not isinstance(value, Mapping) or not value:
        raise UserError(
            f"feedback must be scorer, a file, or a mapping with port (and token_env), not {value!r}", key="feedback"
        )
    endpoint_of(value)


def endpoint_of(value: Mapping[str, Any]) -> Endpoint:
    """Raises UserError for an endpoint at which anybody could give feedback."""
    try:
        found = Endpoint.parse(value)
    except UserError as error:
        faults = "; ".join(map(str, (error, *error.others)))
        raise UserError(f"feedback: {faults}", key="feedback") from error
    if not is_loopback(found.host or LOOPBACK) and not found.token_env:
        raise UserError(
            f"feedback: on host {found.host} anybody could teach the router; give token_env: NAME, an environment "
            "variable with a token, or leave host out, so that it is for this machine only",
            key="feedback",
        )
    return found


def is_loopback(host: str) -> bool:
    """Whether an address, or a name, is reached from this machine only."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"
