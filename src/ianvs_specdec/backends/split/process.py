"""Servers of this package that a model needs for itself: started, asked, and ended with it."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from multiprocessing.connection import wait
from typing import Any

from ianvs_specdec.backends.child import ChildProcess
from ianvs_specdec.common.errors import UserError

READY = "listening on "
START_SECONDS = 600.0
SHOWN = 300
"""Characters that an error shows of what a server wrote."""


class Started(ChildProcess):
    """``specdec`` with ``arguments``, the first of which names the command. Raises ``UserError`` where it does not
    start. ``address`` is where it listens, ``HOST:PORT``.
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
                raise UserError(f"{self.name} printed {line[:SHOWN]!r} instead of its address")
            self.address = line.removeprefix(READY).split()[0].rstrip(",")
        except BaseException:
            self.close()
            raise

    def ask(self) -> Any:
        """What it says of itself. Raises ``UserError`` where it has ended."""
        try:
            self._input.write(b"\n")
            self._input.flush()
        except OSError as error:
            raise self._dead() from error
        return json.loads(self._line())

    def check(self) -> None:
        """Raise ``UserError`` where it has ended."""
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
        last_words = self._last_words().removeprefix(f"{self.name}: ")[-SHOWN:]
        return UserError(f"{self.name}, which this job started, {end}: {last_words} (its log: {self.log})")
