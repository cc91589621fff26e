"""The relay: accepts connections and forwards their data to the target with the delays of the path."""

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
"""How connections end: closed by both ends, reset by one, cut in an outage or on demand, no target, link stopped."""
MAX_IN_TRANSIT = 4 << 20
"""Bytes in transit per direction of a connection: no more is read before some of them are delivered."""
CONNECT_SECONDS = 10.0
"""Timeout of the connection to the target, which is not part of the emulated path."""
_NO_LINGER = struct.pack("ii", 1, 0)
"""Socket option: close with a reset."""


class _Selector(selectors.EpollSelector):
    """Waits with select(2), whose timeout is exact to some tens of microseconds: epoll's rounds up to milliseconds."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout > 0:
            select.select([self.fileno()], [], [], timeout)
            timeout = 0
        return super().select(timeout)


def exact_loop() -> asyncio.AbstractEventLoop:
    """An event loop with exact timers."""
    return asyncio.SelectorEventLoop(_Selector())


@dataclass(eq=False)
class Connection:
    """``task`` forwards the data; ``end``: how the connection ends if it is cancelled."""

    number: int
    opened: float
    task: asyncio.Task[Any]
    end: str = STOPPED
    up: Direction = field(default_factory=Direction)
    down: Direction = field(default_factory=Direction)


class Flow:
    """One direction of one connection: data is written when it is due."""

    def __init__(self, source: StreamReader, sink: StreamWriter, channel: Channel, counts: Direction) -> None:
        self._source, self._sink, self._channel, self._counts = source, sink, channel, counts
        self._waiting: asyncio.Queue[tuple[float, float, bytes]] = asyncio.Queue()
        self._in_transit, self._room = 0, asyncio.Event()

    async def run(self, begin: float) -> None:
        """Forward from the time ``begin`` to the end of the source. Raises OSError after a reset."""
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
            self._in_transit += len(data)
            while self._in_transit > MAX_IN_TRANSIT:
                self._room.clear()
                await self._room.wait()

    async def _write(self) -> None:
        now, ready = asyncio.get_running_loop().time, 0.0
        while True:
            sent, arrival, data = await self._waiting.get()
            await _until(arrival)
            # Delays caused by the receiver do not count as late.
            self._counts.deliver(now() - sent, now() - max(arrival, ready))
            if not data:
                self._sink.write_eof()
                return
            self._sink.write(data)
            await self._sink.drain()
            ready = now()
            self._in_transit -= len(data)
            self._room.set()


class Relay:
    """All connections of one link, on the running event loop. ``warn`` gets a line about problems of the target."""

    def __init__(self, path: Path, target: Address, record: LinkRecord, warn: Callable[[str], None]) -> None:
        self._target, self._record, self._warn, self._last_warning = target, record, warn, ""
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(lambda _, context: self._warn_once(str(context["message"])))
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
        """Start an outage."""
        self._outages.add(self._loop.time(), seconds)
        if self._cuts:
            self.cut()

    def cut(self) -> None:
        """Reset all connections at both ends."""
        for connection in self._connections:
            connection.end = CUT
            connection.task.cancel()

    def summary(self) -> dict[str, Any]:
        """The summary of the record so far."""
        return self._record.summary((one.up, one.down) for one in self._connections)

    async def close(self) -> None:
        """End all connections and complete the record."""
        self._server.close()
        tasks = [connection.task for connection in self._connections]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        now = self._loop.time()
        outages = [(begin - self._began, min(end, now) - self._began) for begin, end in self._outages.before(now)]
        self._record.close(outages, now - self._began)

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connection = Connection(self._accepted, self._loop.time(), task)
        self._accepted += 1
        self._connections.add(connection)
        writers, end = [writer], RESET
        try:
            end = await self._forward(connection, reader, writers)
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

    async def _forward(self, connection: Connection, reader: StreamReader, writers: list[StreamWriter]) -> str:
        """Forward a connection and return how it ended. Adds the writer to the target to ``writers``."""
        up = Channel(self._up, f"{connection.number} up", connection.up)
        down = Channel(self._down, f"{connection.number} down", connection.down)
        # The handshake takes a round trip; the server learns of its end another delay later.
        syn = self._handshake(self._up, connection.opened)
        syn_ack = self._handshake(self._down, syn)
        await _until(syn)
        try:
            server, sink = await asyncio.wait_for(asyncio.open_connection(*self._target), CONNECT_SECONDS)
        except (OSError, TimeoutError) as error:
            self._warn_once(f"{format_address(*self._target)} cannot be reached: {_reason(error)}; the link continues")
            await _until(syn_ack)
            return REFUSED
        self._last_warning = ""
        writers.append(sink)
        flows = Flow(reader, sink, up, connection.up), Flow(server, writers[0], down, connection.down)
        await _both(flows[0].run(syn_ack), flows[1].run(self._handshake(self._up, syn_ack)))
        return CLOSED

    def _handshake(self, line: Line, moment: float) -> float:
        """Arrival of a segment without data."""
        return (self._outages.end_of(moment) or moment) + line.path.delay

    def _next_cut(self) -> None:
        if self._cuts and (begin := self._outages.next_after(self._loop.time())) is not None:
            self._loop.call_at(begin, self._cut_and_next)

    def _cut_and_next(self) -> None:
        self.cut()
        self._next_cut()

    def _warn_once(self, line: str) -> None:
        """Warn, unless the last warning was the same: thousands of connections may have the same problem."""
        if line != self._last_warning:
            self._last_warning = line
            with contextlib.suppress(OSError):
                self._warn(line)


async def _until(moment: float) -> None:
    """Sleep until a time of the loop's clock."""
    if (left := moment - asyncio.get_running_loop().time()) > 0:
        await asyncio.sleep(left)


async def _both(*parts: Coroutine[Any, Any, None]) -> None:
    """Run both; if one fails, cancel the other."""
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
    # Unknown host names have a negative errno, timeouts none.
    number = getattr(error, "errno", None) or 0
    return os.strerror(number) if number > 0 else str(error) or f"no answer within {CONNECT_SECONDS:g} s"
