"""When what is sent in one direction arrives. No sockets and no clock: times are those of the caller's clock."""

from __future__ import annotations

import asyncio
import math
from random import Random

from ianvs_specdec.net.link.outages import Outages
from ianvs_specdec.net.link.path import Path
from ianvs_specdec.net.link.record import Direction

SEGMENT = 1448
"""Bytes of data in a full segment: 1500 of an Ethernet frame less the headers."""
HEADERS = 52
"""Bytes of IPv4 (20) and TCP with time stamps (32) around the data of each segment."""
TICK = 1e-3
"""Seconds: data passes in pieces that take about as long, and at least one segment."""
LARGEST_PIECE = 45 * SEGMENT
"""Bytes: the largest packet of IP, which is what segmentation offload hands on at a time."""
JITTER_HOLDS = 0.01
"""Seconds that one drawn delay holds: about a retransmission of LTE's radio link (HARQ, 8 ms). Were it drawn for each
segment, the order that TCP keeps would turn jitter of dense traffic into delay: each would wait for the slowest."""


class Line:
    """One direction of the path, which all connections share: segments leave one after the other.

    It never drops: where the queue is full, senders wait for their ``turn``, one piece each.
    """

    def __init__(self, path: Path, rate: float | None, outages: Outages) -> None:
        """``rate`` in bits a second, None: unlimited."""
        self.path, self.outages = path, outages
        self.turn = asyncio.Lock()
        self._seconds = 0.0 if rate is None else 8 / rate
        """For one byte."""
        whole = LARGEST_PIECE if rate is None else min(LARGEST_PIECE, int(rate / 8 * TICK))
        self.piece = max(SEGMENT, whole // SEGMENT * SEGMENT)
        """Bytes that are taken from one connection before others have a turn."""
        # With room for less than two pieces the line would stand still between them.
        self._queue = max(path.queue, 2 * _with_headers(self.piece) * self._seconds)
        self._free = -math.inf

    def opens(self) -> float:
        """When the queue has room for a piece."""
        return self._free + _with_headers(self.piece) * self._seconds - self._queue if self._seconds else -math.inf

    def take(self, now: float, size: int) -> float:
        """When the last bit of ``size`` bytes of data, with their headers, has left."""
        self._free = max(now, self._free) + _with_headers(size) * self._seconds
        return self._free


class Way:
    """One direction of one connection. A lost segment is repeated, so it arrives a round trip later for each time that
    it is lost; what leaves in an outage leaves at its end; nothing overtakes what was sent before."""

    def __init__(self, line: Line, name: str, counts: Direction) -> None:
        """``name`` tells its random decisions from those of others with the same seed. It counts in ``counts``."""
        self.line, self._counts = line, counts
        seed = line.path.seed
        self._losses, self._delays = Random(f"loss {seed} {name}"), Random(f"jitter {seed} {name}")
        self._drawn = (-math.inf, 0.0)
        self._latest = -math.inf

    def arrival(self, now: float, size: int) -> float:
        """Of ``size`` bytes that are sent now. The end of a stream has none, and is a segment, too."""
        segments = _segments(size)
        trips = max(self._repeats() for _ in range(segments)) if self.line.path.loss else 0
        left = self.line.take(now, size)
        left = self.line.outages.end_of(left) or left
        self._latest = max(self._latest, left + self._delay(now) + trips * self.line.path.round_trip)
        self._counts.bytes += size
        self._counts.segments += segments
        return self._latest

    def _repeats(self) -> int:
        """How often a segment is lost until it gets through."""
        repeats = 0
        while self._losses.random() < self.line.path.loss:
            repeats += 1
        self._counts.lost += repeats > 0
        return repeats

    def _delay(self, now: float) -> float:
        path = self.line.path
        drawn_at, deviation = self._drawn
        if path.jitter and now - drawn_at >= JITTER_HOLDS:
            deviation = self._delays.uniform(-1, 1)
            self._drawn = now, deviation
        return path.delay + path.jitter * deviation


def _segments(size: int) -> int:
    return max(1, math.ceil(size / SEGMENT))


def _with_headers(size: int) -> int:
    return size + HEADERS * _segments(size)
