"""Requests that are under way at the same time, and each one's share of the time that they have in common."""

from __future__ import annotations

import threading
import time
from typing import NamedTuple


class Begun(NamedTuple):
    """What a request is told when it begins."""

    issued: float
    """``time.perf_counter`` at that moment."""
    passed: float
    """Seconds that one request alone would have had since the process began."""


class UnderWay(NamedTuple):
    """How long a request was under way (seconds), and how much of that was its own share."""

    elapsed: float
    share: float


class Overlap:
    """While ``n`` requests are under way, a ``n``-th of the time that passes is each one's. Thread-safe."""

    def __init__(self) -> None:
        self._number = 0
        self._share = self._since = 0.0
        self._mutex = threading.Lock()

    def begin(self) -> Begun:
        """A request begins: what ``end`` wants to be told."""
        with self._mutex:
            self._pass(+1)
            return Begun(self._since, self._share)

    def end(self, begun: Begun) -> UnderWay:
        """A request ends. Both its times come from the same two looks at the clock: alone, it has all of its time."""
        with self._mutex:
            self._pass(-1)
            return UnderWay(self._since - begun.issued, self._share - begun.passed)

    def _pass(self, change: int) -> None:
        now = time.perf_counter()
        if self._number:
            self._share += (now - self._since) / self._number
        self._since = now
        self._number += change


REQUESTS = Overlap()
"""Those of all models in this process: edge and cloud share its time."""
