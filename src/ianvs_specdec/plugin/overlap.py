"""Requests that are under way at the same time, and each one's share of the time that they have in common."""

from __future__ import annotations

import threading
import time


class Overlap:
    """While ``n`` requests are under way, a ``n``-th of the time that passes is each one's. Thread-safe."""

    def __init__(self) -> None:
        self._number = 0
        self._share = self._since = 0.0
        self._mutex = threading.Lock()

    def begin(self) -> float:
        """A request begins: what ``end`` wants to be told."""
        with self._mutex:
            self._pass(+1)
            return self._share

    def end(self, begun: float) -> float:
        """A request ends: its share in seconds."""
        with self._mutex:
            self._pass(-1)
            return self._share - begun

    def _pass(self, change: int) -> None:
        now = time.perf_counter()
        if self._number:
            self._share += (now - self._since) / self._number
        self._since = now
        self._number += change


REQUESTS = Overlap()
"""Those of all models in this process: edge and cloud share its time."""
