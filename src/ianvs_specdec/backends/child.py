"""Child processes of a back end: start, pipes, log and shutdown."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from ianvs_specdec.common.errors import UserError

GRACE = 15.0
"""Seconds until a process is killed."""
TAIL_LINES = 3
"""Lines of a log that an error shows."""


READY = "listening on "
START_SECONDS = 600.0
MAX_SHOWN = 300
"""Characters of a server's output that an error shows."""


class ChildProcess:
    """A process that runs ``command`` until ``close``, and that must exit at the end of its standard input.

    So it ends with this process, however that ends. Standard error goes to ``log``, which is kept after a failure.
    """

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self.name = name
        handle, log = tempfile.mkstemp(prefix=f"specdec-{name.split()[-1].lower()}-", suffix=".log")
        self.log = Path(log)
        with os.fdopen(handle, "wb") as stderr:
            # In its own session: Ctrl-C interrupts this process only, which then ends the child.
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=environment,
                start_new_session=True,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        """End the process and its children. Idempotent."""
        died = True
        with contextlib.suppress(ChildProcessError):
            died = self._has_ended()
        with contextlib.suppress(OSError):
            self._input.close()
        deadline = time.monotonic() + GRACE
        # The group is killed before its leader is reaped: until then its id is not reused.
        with contextlib.suppress(ChildProcessError, ProcessLookupError, PermissionError):
            while not self._has_ended() and time.monotonic() < deadline:
                time.sleep(0.02)
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.returncode == 0 and not died:
            self.log.unlink(missing_ok=True)

    def _has_ended(self) -> bool:
        """Whether the process has ended, without reaping it. Raises ChildProcessError once it is reaped."""
        if not hasattr(os, "waitid"):  # macOS before Python 3.13
            return self._process.poll() is not None
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _end(self) -> str | None:
        """How the process ended, None if it has not within ``GRACE``."""
        try:
            status = self._process.wait(GRACE)
        except subprocess.TimeoutExpired:
            return None
        if -status == signal.SIGKILL:
            return f"was killed by signal {-status}, as the system does where memory runs out"
        return f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"

    def _last_words(self) -> str:
        written = self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""
        lines = [line.strip() for line in written.splitlines() if line.strip()]
        return " | ".join(lines[-TAIL_LINES:]) or "it wrote nothing"


class ServerProcess(ChildProcess):
    """A ``specdec`` server. ``arguments[0]`` is the command; ``address`` is ``HOST:PORT``.

    Raises UserError if it does not start.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        super().__init__(
            f"specdec {arguments[0]}", [sys.executable, "-m", "ianvs_specdec", *arguments, "--exit-with-parent"]
        )
        try:
            if not wait([self._output.fileno()], START_SECONDS):
                raise UserError(f"{self.name} was not ready after {START_SECONDS:g} s: {self._last_words()}")
            line = self._line()
            if not line.startswith(READY):
                raise UserError(f"{self.name} printed {line[:MAX_SHOWN]!r} instead of its address")
            self.address = line.removeprefix(READY).split()[0].rstrip(",")
        except BaseException:
            self.close()
            raise

    def ask(self) -> Any:
        """The status that it reports, as JSON. Raises UserError if it has ended."""
        try:
            self._input.write(b"\n")
            self._input.flush()
        except OSError as error:
            raise self._dead() from error
        return json.loads(self._line())

    def check(self) -> None:
        """Raise UserError if it has ended."""
        if self._process.poll() is not None:
            raise self._dead()

    def close(self) -> None:
        super().close()
        self._output.close()

    def _line(self) -> str:
        line = self._output.readline().decode("utf-8", "replace").strip()
        if not line:
            raise self._dead()
        return line

    def _dead(self) -> UserError:
        end = self._end() or "does not answer"
        last_words = self._last_words().removeprefix(f"{self.name}: ")[-MAX_SHOWN:]
        return UserError(f"{self.name}, which this job started, {end}: {last_words} (its log: {self.log})")
