"""How far a long command is, on standard error: one line that is renewed on a terminal, one now and then elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from typing import Any, TextIO

ON_TERMINAL, ELSEWHERE = 0.2, 15.0
"""Seconds between two lines."""
LIVE = "{desc} |{bar}|"
"""The line on a terminal, the vital first: what a narrow one has no room for is cut at the end."""


class Progress:
    """Counts steps of several kinds, which follow one another. ``totals``: kind -> how many there will be.

    Steps that were ``had`` before, from the ``source``, cost no time: the rate and the time that is left count the
    others. Thread-safe.
    """

    def __init__(self, noun: str, totals: Mapping[str, int], source: str = "the journal") -> None:
        self.done = 0
        self._noun, self._totals, self._source = noun, totals, source
        self._counts, self._cached = dict.fromkeys(totals, 0), dict.fromkeys(totals, 0)
        self._began: dict[str, float] = {}
        self._kind = ""
        self._live = LiveLine()
        self._next = time.monotonic() + (ON_TERMINAL if self._live else ELSEWHERE)
        self._mutex = threading.Lock()

    def step(self, kind: str, cached: bool = False) -> None:
        """One more of this kind is done."""
        with self._mutex:
            self.done += 1
            if kind != self._kind:
                self._end_kind()
                self._kind = kind
            if not cached:
                self._began.setdefault(kind, time.monotonic())
            self._counts[kind] += 1
            self._cached[kind] += cached
            if time.monotonic() >= self._next:
                self._show()

    def close(self) -> None:
        """Show how the last kind ended."""
        with self._mutex:
            self._end_kind()
            self._kind = ""

    def _end_kind(self) -> None:
        if self._kind:
            self._live.close()
            print_line(self._standing(), sys.stderr)

    def _show(self) -> None:
        self._next = time.monotonic() + (ON_TERMINAL if self._live else ELSEWHERE)
        if self._live:
            self._live.at(self._counts[self._kind] / self._totals[self._kind], self._standing())
        else:
            print_line(self._standing(), sys.stderr)

    def _standing(self) -> str:
        """What is done of the present kind, and how long the rest will take."""
        now, kind = time.monotonic(), self._kind
        count, total, had = self._counts[kind], self._totals[kind], self._cached[kind]
        # The clock runs from the end of the first step that is new: that one loads a model.
        seconds, new = now - self._began.get(kind, now), count - had - 1
        rate = new / seconds if seconds > 0 and new > 0 else 0.0
        parts = [f"{kind}: {count} of {total} {self._noun}"]
        parts += [f"{had} from {self._source}"] if had else []
        parts += [f"{rate:.1f}/s" if rate >= 0.1 else f"{60 * rate:.1f}/min"] if rate else []
        parts += [f"{format_duration((total - count) / rate)} left"] if rate and count < total else []
        return ", ".join(parts)


class LiveLine:
    """The line that is renewed on a terminal; false where there is none, and then nothing is shown."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._bar: Any = None

    def __bool__(self) -> bool:
        return self._terminal

    def at(self, share: float, words: str) -> None:
        """Show that this share of the work is done, from 0 to 1. The line is made with the first call, and renewed by
        calls alone: a thread would take time from what is measured.
        """
        if not self._terminal:
            return
        if self._bar is None:
            from tqdm import tqdm

            self._bar = tqdm(total=1.0, leave=False, dynamic_ncols=True, mininterval=ON_TERMINAL, bar_format=LIVE)
        self._bar.set_description_str(words, refresh=False)
        self._bar.update(min(1.0, share) - self._bar.n)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def print_line(line: str, file: TextIO) -> None:
    """Print a line, above the live line where there is one."""
    from tqdm import tqdm

    tqdm.write(line, file=file)
    file.flush()


def format_duration(seconds: float) -> str:
    """``1:05``, ``2:00:00``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
