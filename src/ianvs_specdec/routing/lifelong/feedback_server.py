"""The HTTP endpoint of feedback: ``POST /feedback`` with one feedback (see ``feedback``) as JSON.

On a loopback address the headers ``Host`` and ``Origin`` are checked, so that no web page can send feedback, not even
by DNS rebinding. On any other address a token is required.
"""

from __future__ import annotations

import hmac
import json
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.net.addresses import Address, format_address
from ianvs_specdec.routing.lifelong.feedback import LONGEST, LOOPBACK, Feedback, endpoint_of, is_loopback

log = logging.getLogger(__name__)

SECONDS = 10.0
"""Time limit of a connection."""
ONLY = "only POST /feedback is served here"
CLIENTS = 64
"""Maximum number of connections, each with a thread. Further ones are closed at once."""


class FeedbackServer:
    """Listens until ``close``. Calls ``receive`` with each feedback, from its own threads."""

    def __init__(self, settings: Mapping[str, Any], receive: Callable[[Feedback], None]) -> None:
        endpoint = endpoint_of(settings)
        host, port = (endpoint.host or LOOPBACK).strip("[]"), endpoint.port
        variable = endpoint.token_env
        token = os.environ.get(variable, "") if variable else ""
        if variable and not token:
            raise UserError(f"feedback: the environment variable {variable} (token_env) is not set", key="feedback")
        own = {"receive": staticmethod(receive), "token": token, "local": is_loopback(host)}
        try:
            self._server = _Server((host, port), type("Handler", (_Handler,), own))
        except OSError as error:
            reason = f"cannot listen on {format_address(host, port)}: {error.strerror or error}"
            raise UserError(f"feedback: {reason}", key="feedback") from error
        threading.Thread(target=self._server.serve_forever, name="feedback", daemon=True).start()
        self.url = f"http://{format_address(host, self._server.server_address[1])}/feedback"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: Address, handler: Any) -> None:
        self._slots = threading.BoundedSemaphore(CLIENTS)
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._slots.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        end = threading.Timer(SECONDS, _hang_up, (request,))
        end.daemon = True
        end.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            end.cancel()
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log errors in one line, except those of closed connections."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            log.warning("feedback: a request could not be answered: %s: %s", type(error).__name__, error)


def _hang_up(request: socket.socket) -> None:
    with suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    receive: Callable[[Feedback], None]
    token: str
    local: bool
    timeout = SECONDS
    server_version, sys_version = "ianvs-specdec", ""

    def do_POST(self) -> None:
        self._answer(*self._receive())

    def do_GET(self) -> None:
        self._answer(405, ONLY)

    def _receive(self) -> tuple[int, str]:
        """Validate the request and pass its feedback on. Status code, and the error or ""."""
        if self.path.partition("?")[0] != "/feedback":
            return 404, ONLY
        if self.local and (reason := self._refusal()):
            return 403, reason
        given = self.headers.get("Authorization", "")
        if self.token and not hmac.compare_digest(given.encode("latin-1", "replace"), f"Bearer {self.token}".encode()):
            return 401, "the header Authorization: Bearer TOKEN is missing or wrong"
        # Browsers send other types across origins without a preflight request.
        if self.headers.get_content_type() != "application/json":
            return 415, "the body must be of Content-Type application/json"
        length = self.headers.get("Content-Length", "")
        number = length.isascii() and length.isdigit()
        # Python does not parse numbers of thousands of digits.
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

    def _refusal(self) -> str:
        """Why a request may not come from a program on this machine, or ""."""
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        if not is_loopback(_name_in(f"//{host}")):
            return "the header Host must name this machine, as in the address that is logged at the start"
        if origin is not None and origin != f"http://{host}":
            return "web pages may not send feedback: there is a header Origin"
        return ""

    def _answer(self, status: int, error: str) -> None:
        # The unread rest of a refused request must not be parsed as the next request.
        self.close_connection = True
        body = json.dumps({"error": error} if error else {"accepted": 1}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged."""


def _name_in(url: str) -> str:
    """The host of a URL, without the port, or ""."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
