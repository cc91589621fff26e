"""What a link did: counts and delays of each connection, and of all together, as JSON lines."""

from __future__ import annotations

import contextlib
import json
import math
import pathlib
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

RESOLUTION = 1.02
"""Delays are counted in buckets that are 2 % wide, so that memory does not grow with what passes."""
SMALLEST = 1e-6
"""Seconds: what is shorter counts as this."""
LATE = 1e-3
"""Seconds after the moment a delivery was due from which it is counted as late: the emulation's own fault."""
PERCENTILES = (50, 95, 99)


class Delays:
    """Durations in seconds, counted in buckets."""

    def __init__(self) -> None:
        self._buckets: Counter[int] = Counter()
        self._longest = 0.0

    def add(self, seconds: float) -> None:
        self._buckets[round(math.log(max(seconds, SMALLEST), RESOLUTION))] += 1
        self._longest = max(self._longest, seconds)

    def take(self, other: Delays) -> None:
        """Those of another as well."""
        self._buckets.update(other._buckets)
        self._longest = max(self._longest, other._longest)

    def to_json(self) -> dict[str, float]:
        """Milliseconds by percentile; empty where there were none."""
        found, seen, wanted = {}, 0, list(PERCENTILES)
        count = sum(self._buckets.values())
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            while wanted and seen >= count * wanted[0] / 100:
                found[f"p{wanted.pop(0)}"] = _milliseconds(min(RESOLUTION**bucket, self._longest))
        return {**found, "max": _milliseconds(self._longest)} if count else {}


class Direction:
    """One direction, of one connection or of all."""

    def __init__(self) -> None:
        self.bytes = self.segments = self.lost = self.late = 0
        """``bytes``: of data, at the sender's socket; ``lost``: segments; ``late``: deliveries, see LATE."""
        self.lost_at: list[int] = []
        self.delays, self.lateness = Delays(), Delays()

    def take(self, other: Direction) -> None:
        """What another counted as well."""
        for name in ("bytes", "segments", "lost", "late"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.delays.take(other.delays)
        self.lateness.take(other.lateness)

    def delivered(self, delay: float, lateness: float) -> None:
        self.delays.add(delay)
        self.lateness.add(lateness)
        self.late += lateness > LATE

    def to_json(self) -> dict[str, Any]:
        counts = {name: getattr(self, name) for name in ("bytes", "segments", "lost", "late")}
        places = {"lost_at": self.lost_at} if self.lost_at else {}
        return {**counts, **places, "delay_ms": self.delays.to_json(), "lateness_ms": self.lateness.to_json()}


class LinkRecord:
    """Writes a line for the link, one for each connection that has ended, and at the end one for all of them."""

    def __init__(self, file: pathlib.Path | None, head: Mapping[str, Any]) -> None:
        """Raises OSError where the file cannot be written."""
        self._file = None if file is None else open(file, "w", encoding="utf-8", buffering=1)  # noqa: SIM115
        self._failure: OSError | None = None
        self._up, self._down = Direction(), Direction()
        self._ends: Counter[str] = Counter()
        self._write({"link": dict(head)})

    def connection(self, number: int, opened: float, closed: float, end: str, up: Direction, down: Direction) -> None:
        """One that is over. Times in seconds since the link began; ``end`` says how."""
        self._up.take(up)
        self._down.take(down)
        self._ends[end] += 1
        times = {"opened": round(opened, 6), "closed": round(closed, 6), "end": end}
        self._write({"connection": number, **times, "up": up.to_json(), "down": down.to_json()})

    def summary(self, running: Iterable[tuple[Direction, Direction]] = ()) -> dict[str, Any]:
        """Of all connections, those that are ``running`` among them."""
        ups, downs = Direction(), Direction()
        count = sum(self._ends.values())
        for up, down in ((self._up, self._down), *running):
            ups.take(up)
            downs.take(down)
            count += up is not self._up
        return {"connections": count, "ends": dict(self._ends), "up": ups.to_json(), "down": downs.to_json()}

    def close(self, outages: Iterable[tuple[float, float]], seconds: float) -> None:
        """``outages``: begins and ends, in seconds since the link began; so is ``seconds``, the end. Raises OSError
        where a line could not be written, now or before: the connections were not to suffer from it.
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


def _milliseconds(seconds: float) -> float:
    return float(f"{1000 * seconds:.4g}")
