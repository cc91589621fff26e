"""A server with scripted replies, which depend on the prompt and the number of earlier requests."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from tests.support.servers import Listener, response, scripted

Reply = Callable[[str, int], bytes | None]
"""Bytes of a whole response; None drops the connection."""


def answer(text: str, *, tokens: int = 3, reason: str = "stop", status: str = "200 OK", **fields: Any) -> bytes:
    """A streamed answer."""
    half = len(text) // 2
    chunks = [
        *({"choices": [{"index": 0, "delta": {"content": piece}}]} for piece in (text[:half], text[half:]) if piece),
        {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]},
        {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": tokens, **fields}},
    ]
    events = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    return response(events.encode(), status=status, headers="Content-Type: text/event-stream\r\n", chunked=50)


def refusal(status: str, body: str = "", content_type: str = "application/json", headers: str = "") -> bytes:
    return response(body.encode(), status=status, headers=f"Content-Type: {content_type}\r\n{headers}")


def error(message: str, **fields: Any) -> str:
    return json.dumps({"error": {"message": message, **fields}})


class ScriptedAPI(Listener):
    def __init__(self, reply: Reply) -> None:
        self.heads: list[str] = []
        self.bodies: list[dict[str, Any]] = []
        self.reply = reply
        self._lock = threading.Lock()
        super().__init__(scripted(self._answer))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def _answer(self, head: str, body: bytes) -> bytes | None:
        request = json.loads(body)
        with self._lock:
            number = len(self.bodies)
            self.heads.append(head)
            self.bodies.append(request)
        return self.reply(request["messages"][-1]["content"], number)


Serve = Callable[[Reply], ScriptedAPI]


@contextmanager
def serving() -> Iterator[Serve]:
    """A function that starts servers; they are closed at the end."""
    with ExitStack() as servers:

        def start(reply: Reply) -> ScriptedAPI:
            server = ScriptedAPI(reply)
            servers.callback(server.close)
            return server

        yield start
