"""The relay: accepts connections, connects to the target, and lets everything pass as the path permits."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import selectors
import socket
import struct
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from ianvs_specdec.net.addresses import Address, format_address
from ianvs_specdec.net.link.path import CUT as CUT_IN_OUTAGES
from ianvs_specdec.net.link.path import Path
from ianvs_specdec.net.link.record import Direction, LinkRecord
from ianvs_specdec.net.link.transmission import Channel, Line, Outages

CLOSED, RESET, CUT, REFUSED, STOPPED = "closed", "reset", "cut", "refused", "stopped"
"""How connections end: by both ends, by one of them, in an outage or on demand, without a target, with the link."""
MOST_HELD = 4 << 20
"""Bytes of one direction of a connection that are on their way: what comes after them is not read."""
CONNECT_SECONDS = 10.0
"""For the connection to the target, which is not part of the emulated path."""
_NO_LINGER = struct.pack("ii", 1, 0)
"""With it, closing a socket sends a reset."""


class _Selector(selectors.EpollSelector):
    """Waits with select(2), whose timeout is exact to some tens of microseconds: epoll's rounds up to milliseconds."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout > 0:
            select.select([self.fileno()], [], [], timeout)
            timeout = 0
        return super().select(timeout)


def exact_loop() -> asyncio.AbstractEventLoop:
    """An event loop for a relay: its timers are exact."""
    return asyncio.SelectorEventLoop(_Selector())


@dataclass(eq=False)
class Connection:
    """``task`` lets it pass; ``end`` is how it ends where that is cancelled."""

    number: int
    opened: float
    task: asyncio.Task[Any]
    end: str = STOPPED
    up: Direction = field(default_factory=Direction)
    down: Direction = field(default_factory=Direction)


class Flow:
    """One direction of one connection: what it reads is written when it is due."""

    def __init__(self, source: StreamReader, sink: StreamWriter, channel: Channel, counts: Direction) -> None:
        self._source, self._sink, self._channel, self._counts = source, sink, channel, counts
        self._waiting: asyncio.Queue[tuple[float, float, bytes]] = asyncio.Queue()
        self._held, self._room = 0, asyncio.Event()

    async def run(self, begin: float) -> None:
        """From the moment ``begin`` on, until the source has ended and all of it was written. Raises OSError where an
        end was reset."""
        await _both(self._read(begin), self._write())

    async def _read(self, begin: float) -> None:
        await _until(begin)
        line, now = self._channel.line, asyncio.get_running_loop().time
        data = b"-"
        while data:
            data = await self._source.read(line.chunk)
            async with line.turn:
                await _until(line.has_room_at())
                sent = now()
                self._waiting.put_nowait((sent, self._channel.arrival(sent, len(data)), data))
            self._held += len(data)
            while self._held > MOST_HELD:
                self._room.clear()
                await self._room.wait()

    async def _write(self) -> None:
        now, ready = asyncio.get_running_loop().time, 0.0
        while True:
            sent, arrival, data = await self._waiting.get()
            await _until(arrival)
            # What the receiver held up is not late.
            self._counts.deliver(now() - sent, now() - max(arrival, ready))
            if not data:
                self._sink.write_eof()
                return
            self._sink.write(data)
            await self._sink.drain()
            ready = now()
            self._held -= len(data)
            self._room.set()


class Relay:
    """All connections of one link. It belongs to the event loop that runs, and is used in no other thread."""

    def __init__(self, path: Path, target: Address, record: LinkRecord, tell: Callable[[str], None]) -> None:
        """``tell`` gets one line for the user where something is wrong outside of the link."""
        self._target, self._record, self._tell, self._told = target, record, tell, ""
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(lambda _, context: self._say(str(context["message"])))
        self._began = self._loop.time()
        self._cuts = path.on_outage == CUT_IN_OUTAGES
        self._outages = Outages(path.outage, path.seed, self._began)
        self._up, self._down = (Line(path, rate, self._outages) for rate in (path.up, path.down))
        self._connections: set[Connection] = set()
        self._accepted = 0
        self._next_cut()

    async def listen(self, listener: socket.socket) -> None:
        self._server = await asyncio.start_server(self._serve, sock=listener)

    def outage(self, seconds: float) -> None:
        """Nothing passes from now on for ``seconds``."""
        self._outages.add(self._loop.time(), seconds)
        if self._cuts:
            self.cut()

    def cut(self) -> None:
        """Reset all connections, at both ends, at once."""
        for connection in self._connections:
            connection.end = CUT
            connection.task.cancel()

    def summary(self) -> dict[str, Any]:
        """What the record says of all connections up to now."""
        return self._record.summary((one.up, one.down) for one in self._connections)

    async def close(self) -> None:
        """End all connections, and write the record's end."""
        self._server.close()
        tasks = [connection.task for connection in self._connections]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        now = self._loop.time()
        over = [(begin - self._began, min(end, now) - self._began) for begin, end in self._outages.before(now)]
        self._record.close(over, now - self._began)

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connection = Connection(self._accepted, self._loop.time(), task)
        self._accepted += 1
        self._connections.add(connection)
        writers, end = [writer], RESET
        try:
            end = await self._pass(connection, reader, writers)
        except asyncio.CancelledError:
            end = connection.end
        except OSError:
            pass
        finally:
            self._connections.remove(connection)
            for each in writers:
                _close(each, end == CLOSED)
            opened, closed = connection.opened - self._began, self._loop.time() - self._began
            self._record.connection(connection.number, opened, closed, end, connection.up, connection.down)

    async def _pass(self, connection: Connection, reader: StreamReader, writers: list[StreamWriter]) -> str:
        """Let all of a connection pass, and return how it ended. The target's end is added to ``writers``."""
        up = Channel(self._up, f"{connection.number} up", connection.up)
        down = Channel(self._down, f"{connection.number} down", connection.down)
        # The handshake takes a round trip, and the server hears of its end after another delay.
        there = self._handshake(self._up, connection.opened)
        back = self._handshake(self._down, there)
        await _until(there)
        try:
            server, sink = await asyncio.wait_for(asyncio.open_connection(*self._target), CONNECT_SECONDS)
        except (OSError, TimeoutError) as error:
            self._say(f"{format_address(*self._target)} cannot be reached: {_reason(error)}; the link goes on")
            await _until(back)
            return REFUSED
        self._told = ""
        writers.append(sink)
        flows = Flow(reader, sink, up, connection.up), Flow(server, writers[0], down, connection.down)
        await _both(flows[0].run(back), flows[1].run(self._handshake(self._up, back)))
        return CLOSED

    def _handshake(self, line: Line, moment: float) -> float:
        """When a segment without data arrives."""
        return (self._outages.end_of(moment) or moment) + line.path.delay

    def _next_cut(self) -> None:
        if self._cuts and (begin := self._outages.next_after(self._loop.time())) is not None:
            self._loop.call_at(begin, self._cut_and_next)

    def _cut_and_next(self) -> None:
        self.cut()
        self._next_cut()

    def _say(self, line: str) -> None:
        """Once, until something has changed: thousands of connections may meet the same."""
        if line != self._told:
            self._told = line
            with contextlib.suppress(OSError):
                self._tell(line)


async def _until(moment: float) -> None:
    """Come back at a moment of the loop's clock."""
    if (left := moment - asyncio.get_running_loop().time()) > 0:
        await asyncio.sleep(left)


async def _both(*parts: Coroutine[Any, Any, None]) -> None:
    """Until both are done, or one has failed; then the other one is cancelled."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def _close(writer: StreamWriter, gracefully: bool) -> None:
    if gracefully:
        writer.close()
        return
    with contextlib.suppress(OSError):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    writer.transport.abort()


def _reason(error: OSError | TimeoutError) -> str:
    # A name that is not known has a negative number, and no answer has none.
    number = getattr(error, "errno", None) or 0
    return os.strerror(number) if number > 0 else str(error) or f"no answer within {CONNECT_SECONDS:g} s"
