"""The record of a link: counts per connection and in total, as JSON lines."""

from __future__ import annotations

import contextlib
import json
import pathlib
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

LATE = 1e-3
"""Seconds of delay added by the emulation from which a delivery counts as late."""


class Direction:
    """Counts of one direction, of one connection or of all: ``bytes`` of data, ``segments`` (``lost``: of these), and
    ``delivered`` chunks (``late``: see LATE) with their delays."""

    def __init__(self) -> None:
        self.bytes = self.segments = self.lost = self.delivered = self.late = 0
        self._delay = self._longest = self._latest = 0.0

    def add(self, other: Direction) -> None:
        for name in ("bytes", "segments", "lost", "delivered", "late", "_delay"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self._longest = max(self._longest, other._longest)
        self._latest = max(self._latest, other._latest)

    def deliver(self, delay: float, lateness: float) -> None:
        """Count a chunk that arrived ``lateness`` seconds too late."""
        self.delivered += 1
        self.late += lateness > LATE
        self._delay += delay
        self._longest = max(self._longest, delay)
        self._latest = max(self._latest, lateness)

    def to_json(self) -> dict[str, Any]:
        counts = {name: getattr(self, name) for name in ("bytes", "segments", "lost", "delivered", "late")}
        mean = self._delay / self.delivered if self.delivered else 0.0
        times = {"delay_ms": {"mean": mean, "max": self._longest}, "lateness_ms": {"max": self._latest}}
        return {**counts, **{name: _milliseconds(figures) for name, figures in times.items()}}


class LinkRecord:
    """Writes a line with the settings, one for each closed connection, and a summary. Raises OSError."""

    def __init__(self, file: pathlib.Path | None, head: Mapping[str, Any]) -> None:
        self._file = None if file is None else open(file, "w", encoding="utf-8", buffering=1)  # noqa: SIM115
        self._failure: OSError | None = None
        self._up, self._down = Direction(), Direction()
        self._ends: Counter[str] = Counter()
        self._write({"link": dict(head)})

    def connection(self, number: int, opened: float, closed: float, end: str, up: Direction, down: Direction) -> None:
        """Write a closed connection. Times: seconds since the start of the link; ``end``: how it ended."""
        self._up.add(up)
        self._down.add(down)
        self._ends[end] += 1
        times = {"opened": round(opened, 6), "closed": round(closed, 6), "end": end}
        self._write({"connection": number, **times, "up": up.to_json(), "down": down.to_json()})

    def summary(self, open_ones: Iterable[tuple[Direction, Direction]] = ()) -> dict[str, Any]:
        """Counts of all connections, including the open ones."""
        ups, downs = Direction(), Direction()
        count = sum(self._ends.values())
        for up, down in ((self._up, self._down), *open_ones):
            ups.add(up)
            downs.add(down)
            count += up is not self._up
        return {"connections": count, "ends": dict(self._ends), "up": ups.to_json(), "down": downs.to_json()}

    def close(self, outages: Iterable[tuple[float, float]], seconds: float) -> None:
        """Write the summary. ``outages`` (begin and end) and ``seconds`` count from the start of the link.

        Raises the OSError of any line: while the link runs, a full disk does not affect its connections.
        """
        times = [[round(begin, 6), round(end, 6)] for begin, end in outages]
        self._write({"summary": {"seconds": round(seconds, 6), "outages": times, **self.summary()}})
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
        if self._failure is not None:
            raise self._failure

    def _write(self, line: Mapping[str, Any]) -> None:
        if self._file is None or self._failure is not None:
            return
        try:
            self._file.write(json.dumps(line) + "\n")
        except OSError as error:
            self._failure = error


def _milliseconds(figures: Mapping[str, float]) -> dict[str, float]:
    return {name: float(f"{1000 * seconds:.4g}") for name, seconds in figures.items()}
