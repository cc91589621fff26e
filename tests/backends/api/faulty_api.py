"""A chat completions API that fails as real ones do, deterministically, in a process of its own.

What happens to a request depends on the seed, on its prompt and on how often that prompt was asked before, so the same
faults are injected whatever the order of arrival. The answer is a function of the prompt. ``python faulty_api.py SEED``
prints its port and serves until its standard input ends; then it prints, as JSON, what it did.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
import struct
import sys
from collections import Counter
from typing import Any

FAULTS = (
    ("status 500", 0.02),
    ("rate limit", 0.015),
    ("connection", 0.015),
    ("timeout", 0.02),
    ("broken stream", 0.01),
)
"""Shares of the requests; the names are those of the client's failures."""
DOOMED = "doomed"
PAUSE = 0.005


def answer_to(prompt: str) -> str:
    digest = hashlib.sha256(prompt.encode()).hexdigest()
    return f"{prompt}: {' '.join(digest[index : index + 4] for index in range(0, 40, 4))}"


def tokens_of(prompt: str) -> int:
    return 3 + len(prompt) % 5


def fault_of(seed: int, prompt: str, attempt: int) -> str | None:
    if prompt.startswith(DOOMED):
        return "status 500"
    chance = int(hashlib.sha256(f"{seed}/{prompt}/{attempt}".encode()).hexdigest()[:12], 16) / 16**12
    for fault, share in FAULTS:
        if chance < share:
            return fault
        chance -= share
    return None


class FaultyAPI:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.asked: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.in_flight = self.most_in_flight = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                length = int(head.split("content-length:")[1].split()[0])
                body = json.loads(await reader.readexactly(length))
                self.in_flight += 1
                self.most_in_flight = max(self.most_in_flight, self.in_flight)
                try:
                    await self._answer(body["messages"][-1]["content"], reader, writer)
                finally:
                    self.in_flight -= 1
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def _answer(self, prompt: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        attempt = self.asked[prompt]
        self.asked[prompt] += 1
        fault = fault_of(self.seed, prompt, attempt)
        if fault:
            self.faults[fault] += 1
        if fault in ("status 500", "rate limit"):
            error = json.dumps({"error": {"message": "not now"}}).encode()
            status = "429 Too Many Requests" if fault == "rate limit" else "500 Internal Server Error"
            header = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(error)}\r\n\r\n"
            writer.write(header.encode() + error)
            await writer.drain()
            return
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        words = answer_to(prompt).split(" ")
        for index, word in enumerate(words):
            if fault and index == len(words) // 2:
                await self._fail(fault, reader, writer)
                return
            self._event(writer, choices=[_choice(word + " " * (index < len(words) - 1), None)])
            await writer.drain()
            await asyncio.sleep(PAUSE)
        self._event(writer, choices=[_choice(None, "stop")])
        tokens = tokens_of(prompt)
        self._event(writer, usage={"prompt_tokens": 7, "completion_tokens": tokens, "total_tokens": 7 + tokens})
        _chunk(writer, b"data: [DONE]\n\n")
        _chunk(writer, b"")
        await writer.drain()
        self.answered[prompt] += 1

    async def _fail(self, fault: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if fault == "timeout":
            # Silent until the client has gone.
            await reader.read()
        elif fault == "connection":
            connection: Any = writer.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        else:
            _chunk(writer, b"")
            await writer.drain()

    def _event(self, writer: asyncio.StreamWriter, **fields: Any) -> None:
        chunk = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "m", "choices": [], **fields}
        _chunk(writer, f"data: {json.dumps(chunk)}\n\n".encode())


def _choice(content: str | None, reason: str | None) -> dict[str, Any]:
    return {"index": 0, "delta": {"content": content}, "finish_reason": reason}


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n%s\r\n" % (len(data), data))


async def main(seed: int) -> None:
    api = FaultyAPI(seed)
    server = await asyncio.start_server(api.serve, "127.0.0.1", 0, backlog=256)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    print(
        json.dumps(
            {
                "faults": api.faults,
                "asked": sum(api.asked.values()),
                "answered": api.answered,
                "most_in_flight": api.most_in_flight,
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
