"""A contestant seen from the parent: started, asked, and reported when it dies. ``Driver`` runs one that speaks the
protocol of ``serve.py``, ``Package`` a published package as the back end of its name runs it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from ianvs_specdec.backends.official.backend import WORKER, steps_of
from ianvs_specdec.backends.process import WorkerProcess, environment
from ianvs_specdec.common.errors import UserError

GRACE = 10.0
TAIL_LINES = 3


class Driver:
    """One process that speaks the protocol of ``serve.py``; ``log`` receives its standard error. What keeps it from
    starting is told by ``start``, or when it is first asked.

    Raises ``UserError`` with the end of that log when the process is gone or says something else than an answer.
    ``versions`` are those of the packages in it.
    """

    def __init__(self, name: str, command: Sequence[str], log: Path, threads: int) -> None:
        self.name = name
        self.versions: dict[str, str] = {}
        self._log, self._loaded = log, False
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as stderr:
            self._process = subprocess.Popen(
                list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, env=environment(threads)
            )

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            try:
                stream.close()
            except OSError:
                continue
        try:
            self._process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def start(self) -> None:
        """Wait until the model is loaded."""
        self.versions, self._loaded = self._read()["versions"], True

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        if not self._loaded:
            self.start()
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise self._dead() from error
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._dead()
        try:
            answer: dict[str, Any] = json.loads(line)
        except ValueError as error:
            raise UserError(f"{self.name}: not an answer: {line[:200]!r} (its log: {self._log})") from error
        return answer

    def _dead(self) -> UserError:
        status = self._process.wait()
        lines = [line.strip() for line in self._log.read_text(encoding="utf-8", errors="replace").splitlines()]
        tail = " | ".join([line for line in lines if line][-TAIL_LINES:]) or "it wrote nothing"
        return UserError(f"{self.name} ended with status {status}: {tail} (its log: {self._log})")


class Package:
    """The worker of a published package's back end, asked as a driver is: token ids in, token ids out."""

    def __init__(self, package: str, python: Path, arguments: Mapping[str, Any], threads: int) -> None:
        self.versions: dict[str, str] = {}
        self._package, self._threads = package, threads
        self._command, self._arguments = [str(python), str(WORKER), package], {**arguments, "threads": threads}
        self._worker: WorkerProcess | None = None

    def __enter__(self) -> Package:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._worker is not None:
            self._worker.close()

    def start(self) -> None:
        """Wait until the model is loaded."""
        surroundings = environment(self._threads)
        self._worker = WorkerProcess(self._package, self._command, self._arguments, surroundings)
        self.versions = self._worker.ready["versions"]

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._worker is not None
        lines: list[Mapping[str, Any]] = []
        sampling = {
            "max_tokens": request["max_new_tokens"],
            "stop_token_ids": request["eos_ids"],
            "settings": request["row"],
        }
        self._worker.ask(request["prompt"], sampling, lambda line: lines.append(line) is None)
        counts, drafts = [len(line["tokens"]) for line in lines], lines[-1]["drafts"]
        steps = steps_of(counts, counts, drafts)
        return {
            "output": [token for line in lines for token in line["tokens"]],
            "seconds": lines[-1]["time"] - lines[-1]["started"],
            "steps": len(steps),
            "emitted": [step.emitted for step in steps],
            "prefills": drafts["prefills"],
        }
