"""A chat completions API that counts its requests."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

HANGS = 300.0
"""Seconds for which a request hangs, unless the API is stopped."""


@dataclass(frozen=True)
class Ask:
    """One request that reached the API. ``prompt`` is a fingerprint of model and messages."""

    model: str
    prompt: str
    messages: tuple[tuple[str, str], ...]
    authorization: str


class CountingAPI(ThreadingHTTPServer):
    """A chat completions API that records its requests.

    Every answer contains the fingerprint of its prompt. ``slow``: seconds between its three pieces. ``dies_at``: number
    of the request (from 0) at which it begins to misbehave. ``death``: "cut" (drops the connection during the answer),
    "hang", "close" (stops listening), or an HTTP status whose message repeats the Authorization header.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.asked: list[Ask] = []
        self.slow = 0.0
        self.dies_at: int | None = None
        self.death: str | int = "cut"
        self.closing = threading.Event()
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def note(self, ask: Ask) -> int:
        with self._lock:
            self.asked.append(ask)
            return len(self.asked) - 1

    def stop(self) -> None:
        """Stop answering. Idempotent."""
        self.closing.set()
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that are killed during a request are expected."""


@contextmanager
def serving(port: int = 0) -> Iterator[CountingAPI]:
    api = CountingAPI(port)
    thread = threading.Thread(target=api.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield api
    finally:
        api.stop()


def fingerprint(model: str, messages: list[dict[str, str]]) -> str:
    return hashlib.sha256(json.dumps([model, messages]).encode()).hexdigest()[:20]


class _Handler(BaseHTTPRequestHandler):
    server: CountingAPI

    def log_message(self, *_: Any) -> None:
        pass

    def do_POST(self) -> None:
        api = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        messages = body["messages"]
        authorization = self.headers.get("Authorization", "")
        prompt = fingerprint(body["model"], messages)
        pairs = tuple((message["role"], message["content"]) for message in messages)
        number = api.note(Ask(body["model"], prompt, pairs, authorization))
        death = api.death if api.dies_at is not None and number >= api.dies_at else None
        if isinstance(death, int):
            self._refuse(death, authorization)
        elif death == "hang":
            api.closing.wait(HANGS)
        elif death == "close":
            api.stop()
            self.connection.close()
        else:
            self._answer(prompt, sum(len(text.split()) for _, text in pairs), cut=death == "cut")

    def _refuse(self, status: int, authorization: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps({"error": {"message": f"no entry with {authorization}"}}).encode())

    def _answer(self, prompt: str, prompt_tokens: int, cut: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        letter = "ABCD"[int(prompt, 16) % 4]
        for piece in (f"The answer is {letter}", ". ", prompt):
            self._event(choices=[{"index": 0, "delta": {"content": piece}, "finish_reason": None}])
            if cut:
                self.connection.close()
                return
            if self.server.slow:
                time.sleep(self.server.slow)
        self._event(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}])
        tokens = 4 + int(prompt, 16) % 7
        self._event(
            usage={
                "prompt_tokens": prompt_tokens,
                "completion_tokens": tokens,
                "total_tokens": prompt_tokens + tokens,
            }
        )
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, **fields: Any) -> None:
        chunk = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "stub", "choices": [], **fields}
        self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.flush()
