"""How far a long command is, on standard error: one line that is renewed on a terminal, one now and then elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping

ON_TERMINAL, ELSEWHERE = 0.2, 15.0
"""Seconds between two lines."""


class Progress:
    """Counts steps of several kinds, which follow one another. ``totals``: kind -> how many there will be.

    Steps that were ``had`` before cost no time: the rate and the time that is left count the others. Thread-safe.
    """

    def __init__(self, noun: str, totals: Mapping[str, int]) -> None:
        self.done = 0
        self._noun, self._totals = noun, totals
        self._counts, self._had = dict.fromkeys(totals, 0), dict.fromkeys(totals, 0)
        self._began: dict[str, float] = {}
        self._kind = ""
        self._terminal = sys.stderr.isatty()
        self._next = time.monotonic() + (ON_TERMINAL if self._terminal else ELSEWHERE)
        self._mutex = threading.Lock()

    def step(self, kind: str, had: bool = False) -> None:
        """One more of this kind is done."""
        with self._mutex:
            self.done += 1
            if kind != self._kind:
                self._end_kind()
                self._kind = kind
            if not had:
                self._began.setdefault(kind, time.monotonic())
            self._counts[kind] += 1
            self._had[kind] += had
            if time.monotonic() >= self._next:
                self._show("\r" if self._terminal else "\n")

    def close(self) -> None:
        """Show how the last kind ended."""
        with self._mutex:
            self._end_kind()
            self._kind = ""

    def _end_kind(self) -> None:
        if self._kind:
            self._show("\n")

    def _show(self, end: str) -> None:
        now, kind = time.monotonic(), self._kind
        self._next = now + (ON_TERMINAL if self._terminal else ELSEWHERE)
        count, total, had = self._counts[kind], self._totals[kind], self._had[kind]
        # The clock runs from the end of the first step that is new: that one loads a model.
        seconds, new = now - self._began.get(kind, now), count - had - 1
        rate = new / seconds if seconds > 0 and new > 0 else 0.0
        parts = [f"{kind}: {count} of {total} {self._noun}"]
        parts += [f"{had} from the journal"] if had else []
        parts += [f"{rate:.1f}/s"] if rate else []
        parts += [f"{_clock((total - count) / rate)} left"] if rate and count < total else []
        erase = "\x1b[K" if self._terminal else ""
        print(", ".join(parts) + erase, end=end, file=sys.stderr, flush=True)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
