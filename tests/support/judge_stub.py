"""A fake judge with an OpenAI-compatible API."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class JudgeStub(ThreadingHTTPServer):
    """``judgment`` makes the text of a judgment from the user's message; an HTTP status refuses instead.

    ``bodies``: the requests; ``keys``: their Authorization headers; ``meeting``: requests wait there for each other.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.judgment: Callable[[str], str | int] = lambda prompt: f"Fair. Rating: [[{1 + len(prompt) % 10}]]"
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.meeting: threading.Barrier | None = None
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def prompts(self) -> list[str]:
        return [body["messages"][-1]["content"] for body in self.bodies]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Disconnecting clients are expected."""


class _Handler(BaseHTTPRequestHandler):
    server: JudgeStub

    def log_message(self, *_: Any) -> None:
        pass

    def do_POST(self) -> None:
        stub = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with stub.lock:
            stub.bodies.append(body)
            stub.keys.append(self.headers.get("Authorization", ""))
        if stub.meeting is not None:
            stub.meeting.wait(60)
        judgment = stub.judgment(body["messages"][-1]["content"])
        if isinstance(judgment, int):
            self._reply(judgment, "application/json")
            error = {"error": {"message": f"refused: {self.headers.get('Authorization')}"}}
            self.wfile.write(json.dumps(error).encode())
            return
        self._reply(200, "text/event-stream")
        tokens = len(judgment.split())
        self._event(choices=[{"index": 0, "delta": {"content": judgment}, "finish_reason": None}])
        self._event(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}])
        self._event(usage={"prompt_tokens": 9, "completion_tokens": tokens, "total_tokens": 9 + tokens})
        self.wfile.write(b"data: [DONE]\n\n")

    def _reply(self, status: int, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.end_headers()

    def _event(self, **fields: Any) -> None:
        chunk = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "stub", "choices": [], **fields}
        self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.flush()


@contextmanager
def judging() -> Iterator[JudgeStub]:
    stub = JudgeStub()
    thread = threading.Thread(target=stub.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield stub
    finally:
        stub.shutdown()
        stub.server_close()
