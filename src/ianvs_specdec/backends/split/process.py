"""Servers of this package that a model needs for itself: started, asked, and ended with it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ianvs_specdec.common.errors import UserError

READY = "listening on "
GRACE = 10.0
"""Seconds that a server has to end by itself. Nobody is asking it anything by then."""
SHOWN = 300
"""Characters of the end of a log that an error shows."""


class Started:
    """``specdec`` with ``arguments``, the first of which names the command, until ``close``. It ends with this process,
    too, however that ends: the system closes its standard input. Raises ``UserError`` where it does not start.

    ``address`` is where it listens, ``HOST:PORT``.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        self.name = f"specdec {arguments[0]}"
        handle, log = tempfile.mkstemp(prefix=f"specdec-{arguments[0]}-", suffix=".log")
        self._log = Path(log)
        with os.fdopen(handle, "wb") as stderr:
            # In a session of its own: an interrupt is for this process, which then ends that one.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "ianvs_specdec", *arguments, "--owned"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        try:
            line = self._line()
            if not line.startswith(READY):
                raise UserError(f"{self.name} says {line[:SHOWN]!r} in place of where it listens")
            self.address = line.removeprefix(READY).split()[0].rstrip(",")
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self) -> Any:
        """What it says of itself. Raises ``UserError`` where it has ended."""
        try:
            self._input.write(b"\n")
            self._input.flush()
        except OSError as error:
            raise self._ended() from error
        return json.loads(self._line())

    def check(self) -> None:
        """Raise ``UserError`` where it has ended."""
        if self._process.poll() is not None:
            raise self._ended()

    def close(self) -> None:
        """Have it end. Does nothing where that has happened."""
        with contextlib.suppress(OSError):
            self._input.close()
        try:
            self._process.wait(GRACE)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._output.close()
        self._log.unlink(missing_ok=True)

    def _line(self) -> str:
        line = self._output.readline().decode("utf-8", "replace").strip()
        if not line:
            raise self._ended()
        return line

    def _ended(self) -> UserError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE)
        words = self._log.read_text(encoding="utf-8", errors="replace").strip() if self._log.exists() else ""
        code = self._process.returncode
        how = "does not answer" if code is None else f"was killed by signal {-code}" if code < 0 else "ended"
        told = words.removeprefix(f"{self.name}: ")[-SHOWN:] or "it wrote nothing"
        return UserError(f"{self.name}, which this job started, {how}: {told}")
