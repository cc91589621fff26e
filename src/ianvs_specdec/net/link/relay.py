"""The relay: accepts connections, connects to the target, and lets everything pass as the path permits."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.net.link.clock import Clock
from ianvs_specdec.net.link.flow import CLOSED, CUT, RESET, Flow, prepare, reset
from ianvs_specdec.net.link.line import Line
from ianvs_specdec.net.link.outages import Outages
from ianvs_specdec.net.link.path import CUT as CUT_IN_OUTAGES
from ianvs_specdec.net.link.path import Path
from ianvs_specdec.net.link.record import Direction, LinkRecord
from ianvs_specdec.net.link.tcp import Sender, opening

REFUSED, STOPPED = "refused", "stopped"
"""How connections end whose target could not be reached, and those that the link's end cuts."""
BACKLOG = 4096
"""Connections that the system keeps until they are accepted; it has a limit of its own (somaxconn)."""
ACCEPTED_AT_ONCE = 64
FULL_PAUSE = 0.1
"""Seconds until the next attempt to accept where the process has no file descriptor left."""
CONNECT_SECONDS = 10.0
"""For the connection to the target, which is not part of the emulated path."""
Address = tuple[str, int]


def address(text: str, key: str, *, any_port: bool = False) -> Address:
    """Host and port of ``HOST:PORT``. ``any_port``: 0 is one, too. Raises UserError with the ``key``, an option."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
    try:
        # As a look-up would.
        host.encode("idna")
        right = bool(colon) and port.isascii() and port.isdigit() and (0 if any_port else 1) <= int(port) <= 65535
    except UnicodeError:
        right = False
    if not right:
        raise UserError(f"--{key} must be written as 127.0.0.1:8000 or [::1]:8000, not {text!r:.80}", key=key)
    return host, int(port)


def written(host: str, port: int) -> str:
    """The text of an address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def bind(listen: Address) -> socket.socket:
    """A socket that listens. Raises UserError where the address cannot be had."""
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(*listen, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise UserError(f"cannot listen on {written(*listen)}: {error.strerror or error}", key="listen") from error
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(where)
        bound.listen(BACKLOG)
    except OSError as error:
        bound.close()
        told = f"cannot listen on {written(*listen)}: {error.strerror or error}"
        raise UserError(f"{told}; name another port, 0 is any that is free", key="listen") from error
    bound.setblocking(False)
    return bound


class Connection:
    """A client, the target's end once it is there, and a flow in each direction."""

    def __init__(self, number: int, client: socket.socket, opened: float) -> None:
        self.number, self.opened = number, opened
        self.client = client
        self.server: socket.socket | None = None
        self.up, self.down = Direction(), Direction()
        self.flows: list[Flow] = []
        self.ended = 0

    def sockets(self) -> list[socket.socket]:
        return [self.client] if self.server is None else [self.client, self.server]


class Relay:
    """All connections of one link. It belongs to the event loop that runs, and is used in no other thread."""

    def __init__(self, path: Path, target: Address, record: LinkRecord, tell: Callable[[str], None]) -> None:
        """``tell`` gets one line for the user where something is wrong outside of the link."""
        self._path, self._target, self._record, self._tell = path, target, record, tell
        self._numeric: list[Any] = []
        # Looking a name up takes a thread, and its address may change; an address needs neither.
        with contextlib.suppress(OSError):
            self._numeric += socket.getaddrinfo(*target, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        self._loop = asyncio.get_running_loop()
        self._clock = Clock(self._loop)
        self._began = self._clock.now()
        self._outages = Outages(path.outage, path.seed, self._began)
        self._up, self._down = (Line(self._clock, rate, path.queue) for rate in (path.up, path.down))
        self._connections: dict[int, Connection] = {}
        self._openings: set[asyncio.Task[None]] = set()
        self._accepted = 0
        self._told = ""
        self._next_cut()

    def listen(self, listener: socket.socket) -> None:
        self._listener = listener
        self._loop.add_reader(listener, self._accept)

    def outage(self, seconds: float) -> None:
        """Nothing passes from now on for ``seconds``."""
        self._outages.call(self._clock.now(), seconds)
        if self._path.on_outage == CUT_IN_OUTAGES:
            self.cut()

    def cut(self) -> None:
        """Reset all connections, at both ends, at once."""
        for connection in list(self._connections.values()):
            self._end(connection, CUT)

    def move(self, delay: float, jitter: float) -> None:
        """What is sent from now on takes another delay. Raises UserError for one that no path has."""
        self._path = replace(self._path, delay=delay, jitter=jitter)
        for connection in self._connections.values():
            for flow in connection.flows:
                flow.sender.move(self._path)

    def summary(self) -> dict[str, Any]:
        """What the record says of all connections up to now."""
        return self._record.summary((one.up, one.down) for one in self._connections.values())

    async def close(self) -> None:
        """End all connections, and write the record's end."""
        self._loop.remove_reader(self._listener)
        self._listener.close()
        for task in self._openings:
            task.cancel()
        await asyncio.gather(*self._openings, return_exceptions=True)
        for connection in list(self._connections.values()):
            self._end(connection, STOPPED)
        now = self._clock.now()
        over = [(begin - self._began, min(end, now) - self._began) for begin, end in self._outages.over(now)]
        self._clock.close()
        self._record.close(over, now - self._began)

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                client, _ = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE):
                    raise
                self._say("no more connections: the system permits this process few open files (ulimit -n)")
                self._loop.remove_reader(self._listener)
                self._clock.at(self._clock.now() + FULL_PAUSE, self._accept_again)
                return
            prepare(client)
            connection = Connection(self._accepted, client, self._clock.now())
            self._accepted += 1
            self._connections[connection.number] = connection
            task = self._loop.create_task(self._open(connection))
            self._openings.add(task)
            task.add_done_callback(self._openings.discard)

    def _accept_again(self) -> None:
        if self._listener.fileno() >= 0:
            self._loop.add_reader(self._listener, self._accept)

    async def _open(self, connection: Connection) -> None:
        """The handshake takes a round trip, and what it sends can be lost, too."""
        chance = Random(f"open {self._path.seed} {connection.number}")
        there = opening(self._path, self._outages, chance, connection.opened)
        back = opening(self._path, self._outages, chance, there)
        await self._clock.until(there)
        try:
            server = await asyncio.wait_for(self._connected(), CONNECT_SECONDS)
        except (OSError, TimeoutError) as error:
            # A name that is not known has a number of its own, and no answer has none.
            number = getattr(error, "errno", None) or 0
            reason = os.strerror(number) if number > 0 else str(error) or f"no answer within {CONNECT_SECONDS:g} s"
            self._say(f"{written(*self._target)} cannot be reached: {reason}; the link goes on")
            await self._clock.until(back)
            self._end(connection, REFUSED)
            return
        self._told = ""
        connection.server = server
        if connection.number not in self._connections:
            # It was cut in the meantime.
            reset(server)
            return
        connection.flows = [
            self._flow(connection, "up", self._up, connection.up, (connection.client, server)),
            self._flow(connection, "down", self._down, connection.down, (server, connection.client)),
        ]
        # The server hears that it is connected after another delay, and sends nothing before.
        self._clock.at(back, connection.flows[0].start)
        self._clock.at(back + self._path.delay, connection.flows[1].start)

    async def _connected(self) -> socket.socket:
        found = self._numeric or await self._loop.getaddrinfo(*self._target, type=socket.SOCK_STREAM)
        failed: OSError | None = None
        for family, kind, protocol, _, where in found:
            server = socket.socket(family, kind, protocol)
            prepare(server)
            try:
                await self._loop.sock_connect(server, where)
                return server
            except OSError as error:
                server.close()
                failed = error
            except BaseException:
                server.close()
                raise
        raise failed or OSError("no address")

    def _flow(
        self,
        connection: Connection,
        way: str,
        line: Line,
        counts: Direction,
        ends: tuple[socket.socket, socket.socket],
    ) -> Flow:
        sender = Sender(self._path, line, self._outages, f"{connection.number} {way}", counts)

        def over(how: str) -> None:
            self._over(connection, how)

        return Flow(self._loop, self._clock, line, sender, ends, counts, over)

    def _over(self, connection: Connection, how: str) -> None:
        """A flow has ended: with both, or with a reset, the connection has."""
        connection.ended += 1
        if how == RESET or connection.ended == len(connection.flows):
            self._end(connection, how)

    def _end(self, connection: Connection, how: str) -> None:
        if self._connections.pop(connection.number, None) is None:
            return
        for flow in connection.flows:
            flow.close()
        for one in connection.sockets():
            if how == CLOSED:
                one.close()
            else:
                reset(one)
        opened, closed = connection.opened - self._began, self._clock.now() - self._began
        self._record.connection(connection.number, opened, closed, how, connection.up, connection.down)

    def _next_cut(self) -> None:
        if self._path.on_outage == CUT_IN_OUTAGES and (begin := self._outages.after(self._clock.now())) is not None:
            self._clock.at(begin, self._cut_and_next)

    def _cut_and_next(self) -> None:
        self.cut()
        self._next_cut()

    def _say(self, line: str) -> None:
        """Once, until something has changed: thousands of connections may meet the same."""
        if line != self._told:
            self._told = line
            with contextlib.suppress(OSError):
                self._tell(line)
