"""Ctrl-C and SIGTERM: they end a run within two seconds, even if a plugin does not react."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
GRACE = 1.5  # seconds for the modules' cleanup


class Interrupt:
    """Context manager of a run. The first Ctrl-C or SIGTERM raises KeyboardInterrupt; after GRACE seconds, at a second
    signal, or during an import, the process exits at once. Both print ``summary``."""

    def __init__(self, summary: Callable[[], str]) -> None:
        self._summary = summary
        self._once = threading.Lock()
        self._timer: threading.Timer | None = None
        self._before: dict[int, Any] = {}
        self.code = exit_code(signal.SIGINT)

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._on_signal) for number in SIGNALS}
        return self

    def __exit__(self, *exc_info: object) -> None:
        # After an interruption the timer stays active, as plugins' threads may keep the interpreter alive.
        if self._timer is None:
            for number, handler in self._before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # C++ libraries abort if an exception is raised while they are imported.
        if self._timer is None:
            self.code = exit_code(number)
        if self._timer is not None or _importing(frame):
            self._end()
        self._timer = threading.Timer(GRACE, self._end)
        self._timer.daemon = True
        self._timer.start()
        raise KeyboardInterrupt

    def print_summary(self) -> None:
        if self._once.acquire(blocking=False):
            print(f"\n{self._summary()}", file=sys.stderr, flush=True)

    def _end(self) -> None:
        self.print_summary()
        os._exit(self.code)


def exit_code(number: int) -> int:
    return 128 + number


def _importing(frame: FrameType | None) -> bool:
    files = (above.f_code.co_filename for above, _ in traceback.walk_stack(frame))
    return any(file.startswith("<frozen importlib") for file in files)
