"""Progress of long commands on standard error: a live line on a terminal, else one line every 15 seconds."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from typing import Any, TextIO

ON_TERMINAL, ELSEWHERE = 0.2, 15.0
"""Seconds between two updates."""
LIVE = "{desc} |{bar}|"
"""Format of the live line. Narrow terminals cut off its end."""


class Progress:
    """Counts steps of several kinds, one kind after another. ``totals``: kind -> number of steps.

    ``cached`` steps, read from ``source``, take no time: rate and remaining time count the others. Thread-safe.
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
        """Count one more step."""
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
        """Print the result of the last kind."""
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
        """Steps done of the current kind, rate and remaining time."""
        now, kind = time.monotonic(), self._kind
        count, total, had = self._counts[kind], self._totals[kind], self._cached[kind]
        # Timing starts after the first new step, which loads a model.
        seconds, new = now - self._began.get(kind, now), count - had - 1
        rate = new / seconds if seconds > 0 and new > 0 else 0.0
        parts = [f"{kind}: {count} of {total} {self._noun}"]
        parts += [f"{had} from {self._source}"] if had else []
        parts += [f"{rate:.1f}/s" if rate >= 0.1 else f"{60 * rate:.1f}/min"] if rate else []
        parts += [f"{format_duration((total - count) / rate)} left"] if rate and count < total else []
        return ", ".join(parts)


class LiveLine:
    """A live line on a terminal. False, and without effect, if standard error is not a terminal."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._bar: Any = None

    def __bool__(self) -> bool:
        return self._terminal

    def at(self, share: float, words: str) -> None:
        """Show the ``share`` of the work that is done, from 0 to 1. Only calls update the line: a thread would disturb
        measurements."""
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
    """Print a line, above the live line if there is one."""
    from tqdm import tqdm

    tqdm.write(line, file=file)
    file.flush()


def format_duration(seconds: float) -> str:
    """``1:05``, ``2:00:00``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
