"""A small HTTP endpoint that thumbs are posted to: ``POST /feedback`` with one feedback (see ``feedback``) as JSON.

The standard library's server is enough for it: a request is a few bytes, and nothing is streamed.
"""

from __future__ import annotations

import hmac
import json
import os
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ianvs_specdec.errors import UserError
from ianvs_specdec.lifelong.feedback import LONGEST, Feedback

SECONDS = 10.0
"""How long a client may take to send its request."""
LOOPBACK = "127.0.0.1"


class FeedbackServer:
    """Listens until ``close``. ``receive`` is called with each feedback, from threads of the server."""

    def __init__(self, settings: Mapping[str, Any], receive: Callable[[Feedback], None]) -> None:
        host, port = settings.get("host") or LOOPBACK, settings["port"]
        variable = settings.get("token_env") or ""
        token = os.environ.get(variable, "") if variable else ""
        if variable and not token:
            raise UserError(f"feedback: the environment variable {variable} (token_env) is not set", key="feedback")
        handler = type("Handler", (_Handler,), {"receive": staticmethod(receive), "token": token})
        try:
            self._server = ThreadingHTTPServer((host, port), handler)
        except OSError as error:
            reason = error.strerror or error
            raise UserError(f"feedback: cannot listen on {host} port {port}: {reason}", key="feedback") from error
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, name="feedback", daemon=True).start()
        self.url = f"http://{host}:{self._server.server_address[1]}/feedback"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    receive: Callable[[Feedback], None]
    token: str
    timeout = SECONDS
    server_version, sys_version = "ianvs-specdec", ""

    def do_POST(self) -> None:
        self._answer(*self._taken())

    def do_GET(self) -> None:
        self._answer(405, "POST /feedback is all there is")

    def _taken(self) -> tuple[int, str]:
        """Hand the feedback on. The status, and what is wrong with the request."""
        if self.path.partition("?")[0] != "/feedback":
            return 404, "POST /feedback is all there is"
        given = self.headers.get("Authorization", "")
        if self.token and not hmac.compare_digest(given.encode("latin-1", "replace"), f"Bearer {self.token}".encode()):
            return 401, "the header Authorization: Bearer TOKEN is missing or wrong"
        # A web page can make a browser send any other type here without asking.
        if self.headers.get_content_type() != "application/json":
            return 415, "the body must be of Content-Type application/json"
        length = self.headers.get("Content-Length", "")
        number = length.isascii() and length.isdigit()
        # As a text, since Python reads no number of thousands of digits.
        if not number or len(length) > len(str(LONGEST)) or int(length) > LONGEST:
            return 413 if number else 411, f"Content-Length must be there, and at most {LONGEST}"
        try:
            body = self.rfile.read(int(length))
            feedback = Feedback.parse(json.loads(body), "feedback")
        except (OSError, ValueError, UserError, RecursionError) as error:
            return 400, str(error) if isinstance(error, UserError) else "the body is not JSON"
        try:
            self.receive(feedback)
        except UserError as error:
            return 507, str(error)
        return 202, ""

    def _answer(self, status: int, error: str) -> None:
        # What was not read of a refused request must not be taken for the next one.
        self.close_connection = True
        body = json.dumps({"error": error} if error else {"accepted": 1}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing of a request is printed."""
