"""What is due at a moment is done then: the event loop's own timers round up to a millisecond (epoll), these do not."""

from __future__ import annotations

import asyncio
import ctypes
import heapq
import itertools
import os
from collections.abc import Callable

_ABSOLUTE = 1
"""TFD_TIMER_ABSTIME of timerfd_settime(2)."""
_CLOCK = 1
"""CLOCK_MONOTONIC, which is what the event loop's ``time()`` reads on Linux."""
_SOONEST = 1e-9
"""Seconds: a time of 0 would switch the timer off."""


class _Time(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Setting(ctypes.Structure):
    """``struct itimerspec``: how often, and when first."""

    _fields_ = (("interval", _Time), ("value", _Time))


class Clock:
    """Timers of one event loop, exact to some tens of microseconds: a Linux timerfd wakes the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.now = loop.time
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._timer = self._libc.timerfd_create(_CLOCK, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._timer < 0:
            raise OSError(ctypes.get_errno(), "no timer can be had")
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._armed = float("inf")
        loop.add_reader(self._timer, self._ring)

    def at(self, moment: float, call: Callable[[], None]) -> None:
        """``call`` at a moment of ``now()``; what is due at the same moment is called in the order it was given in."""
        heapq.heappush(self._due, (moment, next(self._count), call))
        if moment < self._armed:
            self._arm(moment)

    async def until(self, moment: float) -> None:
        """Come back at a moment of ``now()``."""
        if moment <= self.now():
            return
        come: asyncio.Future[None] = self._loop.create_future()
        self.at(moment, lambda: None if come.done() else come.set_result(None))
        await come

    def close(self) -> None:
        self._due.clear()
        self._loop.remove_reader(self._timer)
        os.close(self._timer)

    def _arm(self, moment: float) -> None:
        self._armed = moment
        whole, rest = divmod(max(moment, _SOONEST), 1.0)
        setting = _Setting(_Time(0, 0), _Time(int(whole), int(rest * 1e9)))
        self._libc.timerfd_settime(self._timer, _ABSOLUTE, ctypes.byref(setting), None)

    def _ring(self) -> None:
        try:
            os.read(self._timer, 8)
        except BlockingIOError:
            # It was set anew in the meantime.
            return
        self._armed = float("inf")
        # What a call sets for now waits for the next ring, so that sockets have their turn.
        now, ringing = self.now(), []
        while self._due and self._due[0][0] <= now:
            ringing.append(heapq.heappop(self._due)[2])
        for call in ringing:
            call()
        if self._due and self._due[0][0] < self._armed:
            self._arm(self._due[0][0])
