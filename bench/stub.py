"""A chat completions API whose answers take a given time, in a process of its own: what is measured against it is the
client.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
LONGEST = 60.0
"""Seconds for the server to come up or to tell what it counted."""


@dataclass(frozen=True)
class Counts:
    """``seconds``: from the first request to the end of the last answer; ``most``: requests at the same time."""

    answers: int
    seconds: float
    most: int


class Stub:
    """The server, seen from the process that measures."""

    def __init__(self, port: int, pipe: Connection) -> None:
        self.url, self._pipe = f"http://127.0.0.1:{port}/v1", pipe

    def counts(self) -> Counts:
        """What was asked since the last call."""
        self._pipe.send("counts")
        if not self._pipe.poll(LONGEST):
            raise SystemExit("bench: the stub server does not answer")
        return Counts(*self._pipe.recv())


def ask_bare(url: str, rows: int, concurrency: int) -> None:
    """Ask as many requests with next to no client: what the server and the machine give at best."""
    address = urllib.parse.urlsplit(url)
    body = b'{"model": "stub", "stream": true, "messages": []}'
    request = (
        f"POST {address.path}/chat/completions HTTP/1.1\r\nHost: {address.netloc}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body
    left = iter(range(rows))

    async def connection() -> None:
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        for _ in left:
            writer.write(request)
            await reader.readuntil(b"\r\n0\r\n\r\n")
        writer.close()

    async def main() -> None:
        await asyncio.gather(*(connection() for _ in range(concurrency)))

    asyncio.run(main())


@contextmanager
def serving(seconds: float, pieces: int) -> Iterator[Stub]:
    """A server on a free port that takes ``seconds`` for an answer, in ``pieces`` spread evenly over them."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, seconds, pieces), daemon=True)
    process.start()
    try:
        if not ours.poll(LONGEST):
            raise SystemExit("bench: the stub server does not start")
        yield Stub(ours.recv(), ours)
    finally:
        process.terminate()
        process.join()


class _Server:
    def __init__(self, seconds: float, pieces: int) -> None:
        self._pause = seconds / pieces
        self._bodies = [_chunk(_event(choices=[_choice(f"word{n} ")])) for n in range(pieces - 1)]
        usage = {"prompt_tokens": 20, "completion_tokens": pieces, "total_tokens": 20 + pieces}
        last = _event(choices=[_choice("The answer is A.")]) + _event(choices=[_choice(None, "stop")])
        self._bodies.append(_chunk(last + _event(usage=usage) + b"data: [DONE]\n\n") + b"0\r\n\r\n")
        self._clear()

    def _clear(self) -> None:
        self._answers = self._running = self._most = 0
        self._first, self._last = 0.0, 0.0

    def counts(self) -> tuple[int, float, int]:
        counted = (self._answers, self._last - self._first, self._most)
        self._clear()
        return counted

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(_length(head))
                await self._answer(writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def _answer(self, writer: asyncio.StreamWriter) -> None:
        begun = time.perf_counter()
        self._first = self._first or begun
        self._running += 1
        self._most = max(self._most, self._running)
        for number, body in enumerate(self._bodies, 1):
            await asyncio.sleep(begun + number * self._pause - time.perf_counter())
            writer.write(_HEAD + body if number == 1 else body)
        self._running -= 1
        self._answers += 1
        self._last = time.perf_counter()


def _length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


def _choice(piece: str | None, finish_reason: str | None = None) -> dict[str, object]:
    delta = {} if piece is None else {"content": piece}
    return {"index": 0, "delta": delta, "finish_reason": finish_reason}


def _event(**fields: object) -> bytes:
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "stub", "choices": [], **fields}
    return f"data: {json.dumps(chunk)}\n\n".encode()


def _chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def _serve(pipe: Connection, seconds: float, pieces: int) -> None:
    async def main() -> None:
        stub = _Server(seconds, pieces)
        server = await asyncio.start_server(stub.connected, "127.0.0.1", 0)
        asyncio.get_running_loop().add_reader(pipe.fileno(), lambda: (pipe.recv(), pipe.send(stub.counts())))
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(main())
