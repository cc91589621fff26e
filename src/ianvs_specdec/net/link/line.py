"""The bandwidth of one direction: segments of all connections leave one after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from ianvs_specdec.net.link.clock import Clock

SEGMENT = 1448
"""Bytes of data in a full segment: 1500 of an Ethernet frame less the headers."""
HEADERS = 52
"""Bytes of IPv4 (20) and TCP with time stamps (32) around the data of each segment."""
INITIAL_WINDOW = 10
"""Segments (RFC 6928). A queue has room for these at least, as bursts would not pass otherwise."""
TICK = 1e-3
"""Seconds: data passes in pieces that take about as long, and at least one segment."""
LARGEST_PIECE = 45 * SEGMENT
"""Bytes: the largest packet of IP, which is what segmentation offload hands on at a time."""
UNSHAPED_PIECE = 64 << 10
"""Bytes read at a time where the bandwidth is unlimited: larger ones hold up other connections."""


class Line:
    """A queue of bounded length and what it takes to transmit. It never drops: who finds it full waits for his turn,
    one piece each, first come, first served. A TCP that fills a queue loses segments to it instead, and fills it again.
    """

    def __init__(self, clock: Clock, rate: float | None, queue: float) -> None:
        """``rate`` in bits a second, ``queue`` in seconds."""
        self._clock = clock
        self._seconds = 0.0 if rate is None else 8 / rate
        """For one byte."""
        whole = UNSHAPED_PIECE if rate is None else min(LARGEST_PIECE, int(rate / 8 * TICK))
        self.piece = max(SEGMENT, whole // SEGMENT * SEGMENT)
        """Bytes that are taken from one connection before others have a turn."""
        self._longest_piece = (self.piece + self.piece // SEGMENT * HEADERS) * self._seconds
        burst = INITIAL_WINDOW * (SEGMENT + HEADERS) * self._seconds
        self._longest = max(queue, burst, 2 * self._longest_piece)
        self._free = 0.0
        self._armed = False
        self._waiting: deque[Callable[[], None]] = deque()

    def take(self, now: float, data: int, segments: int) -> float:
        """When the last bit of these segments, with their headers, has left."""
        if not self._seconds:
            return now
        self._free = max(now, self._free) + (data + segments * HEADERS) * self._seconds
        return self._free

    def admits(self, now: float, again: Callable[[], None]) -> bool:
        """Whether there is room for a piece now. If not, ``again`` is called once there is: then it is its turn."""
        if not self._seconds:
            return True
        if not self._waiting and self._opens() <= now:
            return True
        self._waiting.append(again)
        self._arm()
        return False

    def _opens(self) -> float:
        return self._free + self._longest_piece - self._longest

    def _arm(self) -> None:
        if self._waiting and not self._armed:
            self._armed = True
            self._clock.at(self._opens(), self._next)

    def _next(self) -> None:
        self._armed = False
        if self._opens() <= self._clock.now():
            # It may find nothing to send; the others must not wait for it.
            self._waiting.popleft()()
        self._arm()
