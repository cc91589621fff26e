"""A process that a back end starts and owns: its pipes, its log, its end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

GRACE = 15.0
"""Seconds that a process has to end by itself."""
TAIL_LINES = 3
"""Lines of a log that an error shows."""


class ChildProcess:
    """``command`` until ``close``. It is expected to end when its standard input does: so it ends with this process,
    however that ends. Standard error goes to the file ``log``, which is kept where the process died.
    """

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self.name = name
        handle, log = tempfile.mkstemp(prefix=f"specdec-{name.split()[-1].lower()}-", suffix=".log")
        self.log = Path(log)
        with os.fdopen(handle, "wb") as stderr:
            # In a session of its own: an interrupt is for this process, which then ends that one.
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
        """End the process and everything that it started. Does nothing when that has happened."""
        died = True
        with contextlib.suppress(ChildProcessError):
            died = self._has_ended()
        with contextlib.suppress(OSError):
            self._input.close()
        deadline = time.monotonic() + GRACE
        # It may have children, in its group. The group is killed before its leader is waited for: until then no other
        # process has its number.
        with contextlib.suppress(ChildProcessError, ProcessLookupError, PermissionError):
            while not self._has_ended() and time.monotonic() < deadline:
                time.sleep(0.02)
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.returncode == 0 and not died:
            self.log.unlink(missing_ok=True)

    def _has_ended(self) -> bool:
        """Whether the process has ended, without taking note of it. Raises ChildProcessError once that was done."""
        if not hasattr(os, "waitid"):  # macOS before Python 3.13
            return self._process.poll() is not None
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _end(self) -> str | None:
        """How the process ended, None where it does not within ``GRACE``."""
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
