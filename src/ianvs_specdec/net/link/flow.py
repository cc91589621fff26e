"""One direction of one connection through the link: what passes from one socket to another, and when."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import struct
from collections import deque
from collections.abc import Callable

from ianvs_specdec.net.link.clock import Clock
from ianvs_specdec.net.link.line import Line
from ianvs_specdec.net.link.record import Direction
from ianvs_specdec.net.link.tcp import Packet, Sender

PIECES = 4
"""Read or written for one connection before the others have their turn."""
AT_ONCE = 64 << 10
"""Bytes written by one call, or the piece that comes to more."""
BUFFER = 256 << 10
"""Bytes of a socket's own buffers. Linux makes them larger by itself, and what they hold would be on no path."""
CLOSED, RESET, CUT = "closed", "reset", "cut"
_NO_LINGER = struct.pack("ii", 1, 0)
"""With it, closing a socket sends a reset."""


def prepare(one: socket.socket) -> None:
    """A socket of the link sends at once what is due, and buffers little."""
    one.setblocking(False)
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)


def reset(one: socket.socket) -> None:
    """Close a socket so that its other end sees a reset."""
    with contextlib.suppress(OSError):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    one.close()


class Flow:
    """One direction: reads from a socket as the sender's window and the line permit, writes when it is due.

    What its receiver does not take is read no further: memory holds no more than was under way.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        line: Line,
        sender: Sender,
        ends: tuple[socket.socket, socket.socket],
        counts: Direction,
        over: Callable[[str], None],
    ) -> None:
        """``ends``: where it reads and where it writes. ``over`` is told once how it ended."""
        self._loop, self._clock, self._line, self.sender = loop, clock, line, sender
        self._source, self._sink = ends
        self._counts, self._over = counts, over
        self._waiting: deque[tuple[Packet, bytes | memoryview]] = deque()
        self._end = ""
        """How the source ended, once it has."""
        self._due = 0.0
        """When what was written last should have arrived."""
        self._alarm = math.inf
        self._reading = self._parked = self._stuck = self._closed = False
        self._begun = False
        """Whether a part of the first that waits has been written."""

    def start(self) -> None:
        if not self._closed:
            self._listen(True)

    def close(self) -> None:
        """Take the hands off both sockets."""
        if not self._closed:
            self._listen(False)
            self._block(False)
            self._closed = True
            self._waiting.clear()

    def _listen(self, on: bool) -> None:
        if on and not self._reading:
            self._loop.add_reader(self._source, self._read)
        elif self._reading and not on:
            self._loop.remove_reader(self._source)
        self._reading = on

    def _block(self, on: bool) -> None:
        """Whether the receiver's socket is full."""
        if on and not self._stuck:
            self._loop.add_writer(self._sink, self._unblock)
        elif self._stuck and not on:
            self._loop.remove_writer(self._sink)
        self._stuck = on

    def _unblock(self) -> None:
        self._block(False)
        # What the receiver held up is not late.
        self._due = max(self._due, self._clock.now())
        self._write()
        if not self._parked:
            self._read()

    def _read(self) -> None:
        for _ in range(PIECES):
            if self._closed or self._end or self._stuck:
                self._listen(False)
                return
            now = self._clock.now()
            if not (room := self.sender.room(now)):
                self._park()
                self._clock.at(self.sender.opens(), self._resume)
                return
            if not self._line.admits(now, self._turn):
                self._park()
                return
            if not self._take(now, room):
                return
        self._listen(True)

    def _park(self) -> None:
        """Until somebody calls: the window opens, or it is our turn at the line."""
        self._parked = True
        self._listen(False)

    def _resume(self) -> None:
        self._parked = False
        self._read()

    def _turn(self) -> None:
        """The line has room for a piece, and it is ours."""
        self._parked = False
        now = self._clock.now()
        room = 0 if self._closed or self._end or self._stuck else self.sender.room(now)
        if not room or self._take(now, room):
            self._read()

    def _take(self, now: float, room: int) -> bool:
        """Read a piece and send it on its way; False where there is no more for now."""
        size = min(self._line.piece, room)
        try:
            data = self._source.recv(size)
        except BlockingIOError:
            self._listen(True)
            return False
        except OSError:
            self._end, data = RESET, b""
        if not data:
            self._end = self._end or CLOSED
        place = 0
        for packet in self.sender.send(now, len(data)):
            self._waiting.append((packet, data[place : place + packet.size]))
            place += packet.size
        self._write()
        if self._closed or len(data) == size:
            return not self._closed
        self._listen(bool(data))
        return False

    def _write(self) -> None:
        for _ in range(PIECES):
            if not self._waiting or self._closed or self._stuck:
                return
            packet, data = self._waiting[0]
            now = self._clock.now()
            if packet.arrival > now:
                self._ring_at(packet.arrival)
                return
            if not data:
                self._count(packet, now)
                self._finish()
                return
            data = self._due_data(now)
            try:
                written = self._sink.send(data)
            except BlockingIOError:
                written = 0
            except OSError:
                self._over(RESET)
                return
            self._begun = written < len(data)
            if self._begun:
                self._waiting.appendleft((packet, memoryview(data)[written:]))
                self._block(True)
        self._ring_at(self._clock.now())

    def _due_data(self, now: float) -> bytes | memoryview:
        """What may be written at once: behind a lost segment hundreds of others can be due with it."""
        taken: list[bytes | memoryview] = []
        size = 0
        while self._waiting and size < AT_ONCE:
            packet, data = self._waiting[0]
            if packet.arrival > now or not data:
                break
            if not self._begun:
                self._count(packet, now)
            self._begun = False
            taken.append(data)
            size += len(data)
            self._waiting.popleft()
        return taken[0] if len(taken) == 1 else b"".join(taken)

    def _ring_at(self, moment: float) -> None:
        if moment < self._alarm:
            self._alarm = moment
            self._clock.at(moment, self._ring)

    def _ring(self) -> None:
        self._alarm = math.inf
        self._write()

    def _count(self, packet: Packet, now: float) -> None:
        """What was held up by what came before, or by its receiver, is not late by our fault."""
        self._due = max(self._due, packet.arrival)
        self._counts.delivered(now - packet.sent, now - self._due)

    def _finish(self) -> None:
        """Nothing comes after the end."""
        self._waiting.clear()
        if self._end == CLOSED:
            with contextlib.suppress(OSError):
                self._sink.shutdown(socket.SHUT_WR)
        self._over(self._end)
