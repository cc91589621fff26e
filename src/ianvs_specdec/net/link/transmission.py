"""Arrival times on an emulated path: outages, bandwidth, delay, jitter, retransmissions.

No sockets and no clock: times are those of the caller's clock, in seconds.
"""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_right, insort
from random import Random

from ianvs_specdec.net.link.path import Path, Schedule
from ianvs_specdec.net.link.record import Direction

SEGMENT = 1448
"""Bytes of data in a full segment: 1500 of an Ethernet frame minus the headers."""
HEADERS = 52
"""Bytes of IPv4 (20) and TCP with time stamps (32) around the data of each segment."""
TICK = 1e-3
"""Seconds: data is sent in chunks of about this duration, and at least one segment."""
MAX_CHUNK = 45 * SEGMENT
"""Bytes: the largest IP packet, which segmentation offload passes on at once."""
JITTER_SECONDS = 0.01
"""How long a drawn delay stays: about a retransmission of LTE's radio link (HARQ, 8 ms). Drawn for each segment, jitter
would become delay: TCP keeps the order, so each segment would wait for the slowest."""


class Outages:
    """Outages of one link, generated as needed from ``seed``. ``start``: time when the link started."""

    def __init__(self, schedule: Schedule, seed: int, start: float) -> None:
        self._schedule, self._random = schedule, Random(f"outages {seed}")
        self._until = start
        self._intervals: list[tuple[float, float]] = []
        """Begin and end, sorted and disjoint."""
        if schedule.length and schedule.period is None:
            assert schedule.after is not None
            self.add(start + schedule.after, schedule.length)

    def add(self, begin: float, length: float) -> None:
        """Add an outage, merged with those that it touches."""
        end = begin + length
        touching = [one for one in self._intervals if one[0] <= end and begin <= one[1]]
        for one in touching:
            self._intervals.remove(one)
        insort(
            self._intervals, (min([begin, *(one[0] for one in touching)]), max([end, *(one[1] for one in touching)]))
        )

    def end_of(self, moment: float) -> float | None:
        """End of the outage at ``moment``; None if there is none."""
        self._extend(moment)
        place = bisect_right(self._intervals, (moment, math.inf)) - 1
        return end if place >= 0 and (end := self._intervals[place][1]) > moment else None

    def next_after(self, moment: float) -> float | None:
        """Begin of the next outage after ``moment``; None if none is scheduled."""
        if self._schedule.period is not None:
            self._extend(moment + self._schedule.period)
            while not self._intervals or self._intervals[-1][0] <= moment:
                self._extend(self._until + self._schedule.period)
        place = bisect_right(self._intervals, (moment, math.inf))
        return self._intervals[place][0] if place < len(self._intervals) else None

    def before(self, moment: float) -> list[tuple[float, float]]:
        """Begin and end of all outages that began before ``moment``."""
        return [one for one in self._intervals if one[0] < moment]

    def _extend(self, until: float) -> None:
        if (period := self._schedule.period) is None:
            return
        length = self._schedule.length
        up = period - length
        while self._until <= until:
            begin = self._until + (self._random.expovariate(1 / up) if self._schedule.random else up)
            took = self._random.expovariate(1 / length) if self._schedule.random else length
            self.add(begin, took)
            self._until = begin + took


class Line:
    """One direction of the path, shared by all connections: segments leave one after the other.

    Nothing is dropped: if the queue is full, senders wait for the lock ``turn``, one chunk each. ``rate``: bits per
    second, None = unlimited.
    """

    def __init__(self, path: Path, rate: float | None, outages: Outages) -> None:
        self.path, self.outages = path, outages
        self.turn = asyncio.Lock()
        self._seconds_per_byte = 0.0 if rate is None else 8 / rate
        whole = MAX_CHUNK if rate is None else min(MAX_CHUNK, int(rate / 8 * TICK))
        self.chunk = max(SEGMENT, whole // SEGMENT * SEGMENT)
        """Bytes taken from one connection before the others have a turn."""
        # With room for less than two chunks the line would idle between them.
        self._queue = max(path.queue, 2 * _with_headers(self.chunk) * self._seconds_per_byte)
        self._free = -math.inf

    def has_room_at(self) -> float:
        """When the queue has room for a chunk."""
        if not self._seconds_per_byte:
            return -math.inf
        return self._free + _with_headers(self.chunk) * self._seconds_per_byte - self._queue

    def send(self, now: float, size: int) -> float:
        """When the last bit of ``size`` bytes of data, with their headers, has left."""
        self._free = max(now, self._free) + _with_headers(size) * self._seconds_per_byte
        return self._free


class Channel:
    """One direction of one connection. Each loss delays a segment by a round trip; data sent in an outage leaves at its
    end; the order is kept. ``name`` selects the random numbers. Counts in ``counts``."""

    def __init__(self, line: Line, name: str, counts: Direction) -> None:
        self.line, self._counts = line, counts
        seed = line.path.seed
        self._losses, self._delays = Random(f"loss {seed} {name}"), Random(f"jitter {seed} {name}")
        self._drawn = (-math.inf, 0.0)
        self._latest = -math.inf

    def arrival(self, now: float, size: int) -> float:
        """Arrival of ``size`` bytes sent now. The end of a stream is a segment without data."""
        segments = _segments(size)
        trips = max(self._retransmissions() for _ in range(segments)) if self.line.path.loss else 0
        sent = self.line.send(now, size)
        sent = self.line.outages.end_of(sent) or sent
        self._latest = max(self._latest, sent + self._delay(now) + trips * self.line.path.round_trip)
        self._counts.bytes += size
        self._counts.segments += segments
        return self._latest

    def _retransmissions(self) -> int:
        """How often one segment is lost."""
        repeats = 0
        while self._losses.random() < self.line.path.loss:
            repeats += 1
        self._counts.lost += repeats > 0
        return repeats

    def _delay(self, now: float) -> float:
        path = self.line.path
        drawn_at, deviation = self._drawn
        if path.jitter and now - drawn_at >= JITTER_SECONDS:
            deviation = self._delays.uniform(-1, 1)
            self._drawn = now, deviation
        return path.delay + path.jitter * deviation


def _segments(size: int) -> int:
    return max(1, math.ceil(size / SEGMENT))


def _with_headers(size: int) -> int:
    return size + HEADERS * _segments(size)
