"""A scripted OpenAI-compatible server."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class StubServer(ThreadingHTTPServer):
    """Answers chat completions by a script: one action per request, the last one for all further requests.

    Actions: "ok"; an HTTP status; "hang"; "die" (drops the connection in mid-stream); "truncate" (ends the stream
    politely, but without a finish reason); "slow" (a piece every 50 ms); "think" and "think die" (a thought, and once
    ``released`` the answer or nothing).
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script: list[str | int] = ["ok"]
        self.requests: list[dict[str, Any]] = []
        self.headers: dict[str, str] = {}
        self.pieces = ["The ", "answer ", "is ", "B."]
        self.tokens = 6
        self.released = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Disconnecting clients are expected."""


class _Handler(BaseHTTPRequestHandler):
    server: StubServer
    protocol_version = "HTTP/1.0"

    def log_message(self, *_: Any) -> None:
        pass

    def do_POST(self) -> None:
        stub = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        index = len(stub.requests)
        stub.requests.append({"body": body, "key": self.headers.get("Authorization", ""), "time": time.monotonic()})
        action = stub.script[min(index, len(stub.script) - 1)]
        if isinstance(action, int):
            self._reply(
                action, stub.headers, json.dumps({"error": {"message": f"bad: {self.headers.get('Authorization')}"}})
            )
        elif action == "hang":
            stub.released.wait(120)
        else:
            self._stream(str(action))

    def _reply(self, status: int, headers: dict[str, str], text: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text.encode())

    def _event(self, **fields: Any) -> None:
        chunk = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "stub", "choices": [], **fields}
        self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.flush()

    def _stream(self, action: str) -> None:
        stub = self.server
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()

        def choice(content: str | None, reason: str | None) -> dict[str, Any]:
            return {"choices": [{"index": 0, "delta": {"content": content}, "finish_reason": reason}]}

        if action.startswith("think"):
            self._event(choices=[{"index": 0, "delta": {"reasoning_content": "Hm"}}])
            stub.released.wait(120)
        for number, piece in enumerate(stub.pieces if action != "think die" else []):
            if action == "die" and number == 2:
                self.connection.close()
                return
            if action == "slow":
                time.sleep(0.05)
            self._event(**choice(piece, None))
        if action in ("truncate", "think die"):
            self.wfile.write(b"data: [DONE]\n\n")
            return
        self._event(**choice(None, "stop"))
        total = {"prompt_tokens": 11, "completion_tokens": stub.tokens, "total_tokens": 11 + stub.tokens}
        self._event(usage=total)
        self.wfile.write(b"data: [DONE]\n\n")
