"""Feedback on answers: how it is written down, and that none of it is lost.

One feedback is a JSON object: ``query_id`` (or ``query``: the question, or its first turn), ``side`` (``edge`` or
``cloud``, whose answer it is on), and ``score``, from 0 to 1, or ``thumb``: ``up`` or ``down``. Other keys are ignored.

The log of a router has one line for each feedback that was received and one for each that was learned, in that order,
so that a run that goes on, or is made again, learns the same at the same places.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import logging
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any, TypeGuard

from ianvs_specdec.common.errors import UserError, unknown
from ianvs_specdec.common.storage.claim import claim
from ianvs_specdec.common.storage.lines import LineFile
from ianvs_specdec.routing.learned.online import SIDES

log = logging.getLogger(__name__)

THUMBS = {"up": 1.0, "down": 0.0}
LONGEST = 65536
"""Bytes of one feedback."""
LOOPBACK = "127.0.0.1"
"""Where an endpoint listens if it is not told."""


def named(text: str) -> str:
    """A digest in place of a text, which does not belong into a log."""
    return "text:" + hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


@dataclass(frozen=True)
class Feedback:
    """``query``: the query's id, or what its text is ``named``; ``score``: 0 to 1; ``source``: a name of its own;
    ``model``: whose answer it is on, where that is known.
    """

    query: str
    side: str
    score: float
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

    @classmethod
    def logged(cls, record: Mapping[str, Any], source: str) -> Feedback:
        """As a line of a log has it. Raises ValueError where anything in it is not what it should be."""
        query, side, score, model = (record.get(name) for name in ("query", "side", "score", "model"))
        whole = isinstance(query, str) and side in SIDES and _is_score(score) and isinstance(model, (str, NoneType))
        if not whole:
            raise ValueError("not a feedback")
        return cls(str(query), str(side), float(score or 0.0), source, model or "")


def _is_score(value: Any) -> TypeGuard[float]:
    return not isinstance(value, bool) and isinstance(value, (int, float)) and 0 <= value <= 1


class FeedbackFile:
    """A file of JSON lines that may grow while it is read. Damaged lines are told once, and counted."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damaged = 0
        self._line = 0
        self._offset = 0

    def new(self) -> Iterator[Feedback]:
        """What has been added since. A last line without its end is read when it is whole."""
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


class FeedbackLog:
    """What a router has received and learned, one JSON line each, in the job's folder. Appended only.

    Without a ``path``, outside of a job, nothing is kept.

    ``earlier``: what runs before this one learned from feedback that will not come again by itself, as ``(answers
    given before it, feedbacks learned before it, feedback)``; ``waiting``: what they received and did not learn;
    ``receipts``: how many they received.
    """

    def __init__(self, path: Path | None, run: str, fresh: bool = False) -> None:
        self.path, self.run = path, run
        self.earlier: list[tuple[int, int, Feedback]] = []
        self.waiting: dict[str, Feedback] = {}
        self._known: Counter[tuple[int, str, str, str]] = Counter()
        self._learned: set[str] = set()
        self.receipts = 0
        if path is None:
            self._file = None
            return
        self._file = LineFile(path)
        with self._keeping():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._claim = claim(path.parent, run)
        self._read_all(path, fresh)

    def received(self, feedback: Feedback) -> None:
        """Keep a feedback that nobody else keeps."""
        self._append({"received": feedback.source, **_content(feedback), "run": self.run})

    def learned(self, feedback: Feedback, answers: int, count: int) -> None:
        """Keep when a feedback was learned: after how many answers and feedbacks. Not if that is known."""
        if feedback.source in self._learned:
            return
        key = (count, feedback.query, feedback.side, feedback.model)
        if self._known[key]:
            self._known[key] -= 1
            return
        self._append(
            {"learned": count, "answers": answers, "source": feedback.source, **_content(feedback), "run": self.run}
        )

    def sync(self) -> None:
        """Force what was kept onto the disk."""
        if self._file is not None:
            self._file.sync()

    def _read_all(self, path: Path, fresh: bool) -> None:
        """Take in what was kept before; a ``fresh`` run passes over all but its own."""
        damaged = 0
        for line in _lines_of(path):
            try:
                record = json.loads(line)
                if not isinstance(record, dict):
                    raise ValueError("not an object")
                if record.get("run") == self.run or not fresh:
                    self._take_in(record)
            except (ValueError, RecursionError):
                damaged += 1
        if damaged:
            log.warning("%s: %d damaged line%s ignored", path, damaged, "s"[: damaged != 1])

    def _take_in(self, record: Mapping[str, Any]) -> None:
        """Raises ValueError where the record is damaged."""
        source = record.get("received", record.get("source", ""))
        if not isinstance(source, str):
            raise ValueError("no source")
        feedback = Feedback.logged(record, source)
        if "received" in record:
            self.waiting[source] = feedback
            self.receipts += 1
            return
        count, answers = record.get("learned"), record.get("answers")
        if not isinstance(count, int) or not isinstance(answers, int):
            raise ValueError("no places")
        self.waiting.pop(source, None)
        if not source:
            self._known[(count, feedback.query, feedback.side, feedback.model)] += 1
        elif source not in self._learned:
            self._learned.add(source)
            self.earlier.append((answers, count, feedback))

    def _append(self, record: Mapping[str, Any]) -> None:
        if self._file is None:
            return
        with self._keeping():
            self._file.append(json.dumps(record, separators=(",", ":")).encode() + b"\n")

    @contextmanager
    def _keeping(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UserError(
                f"feedback cannot be kept in {self.path}: {error.strerror or error}", key="feedback"
            ) from error


def _lines_of(path: Path) -> Iterator[bytes]:
    """The lines of a log that hold anything; none without the file."""
    try:
        with path.open("rb") as file:
            yield from filter(bytes.strip, file)
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}", key="feedback") from error


def _content(feedback: Feedback) -> dict[str, Any]:
    model = {"model": feedback.model} if feedback.model else {}
    return {"query": feedback.query, "side": feedback.side, "score": feedback.score, **model}


def check_feedback(value: Any) -> None:
    """Raise UserError if ``value`` is no source of feedback: ``scorer``, a file, or a mapping with ``port``."""
    if isinstance(value, str) and value:
        if value != "scorer" and os.path.isdir(value):
            raise UserError(f"feedback {value} is a folder: give a file of JSON lines", key="feedback")
        if value != "scorer" and not value.endswith(".jsonl"):
            raise UserError(f"feedback must be scorer, or a file that ends in .jsonl, not {value!r}", key="feedback")
        return
    if not isinstance(value, Mapping) or "port" not in value:
        raise UserError(
            f"feedback must be scorer, a file, or a mapping with port (and token_env), not {value!r}", key="feedback"
        )
    _check_endpoint(value)


def _check_endpoint(value: Mapping[Any, Any]) -> None:
    for name in value:
        if name not in ("port", "token_env", "host"):
            raise unknown("key of feedback", str(name), ("port", "token_env", "host"), key="feedback")
    port = value["port"]
    if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= 65535:
        raise UserError(
            f"feedback: port must be a whole number from 0 (any that is free) to 65535, not {port!r}", key="feedback"
        )
    for name in ("token_env", "host"):
        if not isinstance(value.get(name, ""), str):
            raise UserError(f"feedback: {name} must be a text, not {value[name]!r}", key="feedback")
    if not is_loopback(value.get("host") or LOOPBACK) and not value.get("token_env"):
        raise UserError(
            f"feedback: on host {value['host']} anybody could teach the router; give token_env: NAME, an environment "
            "variable with a token, or leave host out, so that it is for this machine only",
            key="feedback",
        )


def is_loopback(host: str) -> bool:
    """Whether an address, or a name, is reached from this machine only."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"
