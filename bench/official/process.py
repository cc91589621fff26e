"""A driver seen from the parent: started, asked, and reported when it dies."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from ianvs_specdec.errors import UserError

GRACE = 10.0
TAIL_LINES = 3


class Driver:
    """One process that speaks the protocol of ``serve.py``; ``log`` receives its standard error.

    Raises ``UserError`` with the end of that log when the process is gone or says something else than an answer.
    ``versions`` are those of the packages in it.
    """

    def __init__(self, name: str, command: Sequence[str], log: Path, threads: int) -> None:
        self.name = name
        self.versions: dict[str, str] = {}
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as stderr:
            self._process = subprocess.Popen(
                list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, env=_environment(threads)
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
        self.versions = self._read()["versions"]

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
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


def _environment(threads: int) -> dict[str, str]:
    """This process's environment, with equal threads for all drivers, no hub, and none of the paths that would bring
    the packages of one environment into another."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    return {**kept, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
