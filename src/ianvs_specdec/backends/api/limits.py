"""What keeps requests from being too many: places, rates, and a budget for repeating them. All for many threads."""

from __future__ import annotations

import sys
import threading
from collections import deque

FREE_REPEATS = 10
"""Repeated attempts that are permitted from the start, whatever the budget: a share of few requests is nothing."""
BURST_SECONDS = 1.0


class Places:
    """Those who wait get a place in the order of their coming: a ``threading.Semaphore`` lets others overtake them."""

    def __init__(self, number: int | None) -> None:
        self._free = number or sys.maxsize
        self._waiting: deque[threading.Event] = deque()
        self._lock = threading.Lock()

    def take(self, timeout: float) -> bool:
        """Wait for a place for ``timeout`` seconds; whether there was one."""
        with self._lock:
            if self._free:
                self._free -= 1
                return True
            mine = threading.Event()
            self._waiting.append(mine)
        mine.wait(timeout)
        with self._lock:
            if not mine.is_set():
                self._waiting.remove(mine)
        return mine.is_set()

    def give_back(self) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._free += 1


class Rate:
    """A number of units (requests, tokens) per minute, with what a second brings in reserve for bursts."""

    def __init__(self, per_minute: float | None) -> None:
        self._seconds_each = 60.0 / per_minute if per_minute else 0.0
        self._spent_until = float("-inf")
        self._lock = threading.Lock()

    def reserve(self, units: float, now: float) -> float:
        """The time from which on the units may be used. They are reserved; what is not used is given back."""
        with self._lock:
            begin = max(now, self._spent_until)
            self._spent_until = max(self._spent_until, now - BURST_SECONDS) + units * self._seconds_each
            return begin

    def give_back(self, units: float) -> None:
        """Also for what turned out to be more than was reserved: a negative number."""
        with self._lock:
            self._spent_until -= units * self._seconds_each


class Budget:
    """Permits repeated attempts up to a share of the requests, so that an outage is not answered with a flood."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._requests = self._repeats = 0
        self._lock = threading.Lock()

    def begin(self) -> None:
        with self._lock:
            self._requests += 1

    def permits(self) -> bool:
        """Whether one more may be repeated; if so, it is counted."""
        with self._lock:
            if self._repeats >= FREE_REPEATS + self._share * self._requests:
                return False
            self._repeats += 1
            return True
