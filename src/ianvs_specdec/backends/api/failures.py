"""Failures of attempts: their kind, message, and whether to retry."""

from __future__ import annotations

import email.utils
import html
import http.client
import json
import re
import ssl
import time
from collections.abc import Mapping
from enum import Enum
from typing import Any

from ianvs_specdec.backends.untrusted import ImplausibleNumber
from ianvs_specdec.common.errors import ContextWindowError, visible
from ianvs_specdec.net.http import ProtocolError
from ianvs_specdec.net.sockets import DeadlineError, InterruptedRequest

RETRIED_STATUS = frozenset({408, 409, 425, 429})
ENDPOINT_STATUS = frozenset({401, 402, 403, 404, 405, 407})
NO_STREAM = "no stream"
MAX_REASON = 400
MAX_BODY = 1 << 16
MAX_WAIT = 86_400.0
"""Seconds of ``Retry-After``: a day, after which quotas are renewed."""


class RetryOutlook(Enum):
    """What a failed attempt means for the next one."""

    TEMPORARY = "another attempt may succeed"
    BUSY = "another attempt may succeed; the server is healthy, but overloaded"
    REQUEST = "no server would answer this request"
    ENDPOINT = "this server would answer no request"
    OVER = "there is no time for another attempt, or the request was cancelled"


class AttemptError(Exception):
    """A failed attempt. ``kind``: its name in statistics; ``wait``: the server's ``Retry-After``, in seconds."""

    def __init__(
        self, kind: str, reason: str, outlook: RetryOutlook = RetryOutlook.TEMPORARY, wait: float | None = None
    ) -> None:
        super().__init__(reason)
        self.kind, self.outlook, self.wait = kind, outlook, wait


def of_exception(error: Exception) -> AttemptError:
    """The failure for an exception of the connection."""
    if isinstance(error, DeadlineError):
        return AttemptError(
            "deadline", "the deadline (api_deadline) passed before the answer was whole", RetryOutlook.OVER
        )
    if isinstance(error, InterruptedRequest):
        return AttemptError("interrupted", str(error), RetryOutlook.OVER)
    if isinstance(error, TimeoutError):
        return AttemptError("timeout", f"{error} (api_timeout)")
    if isinstance(error, ssl.SSLCertVerificationError):
        hint = "api_ca names a file of certificates to trust"
        reason = f"its certificate is not trusted: {error.verify_message} ({hint})"
        return AttemptError("certificate", reason, RetryOutlook.ENDPOINT)
    if isinstance(error, ImplausibleNumber):
        return AttemptError(ImplausibleNumber.KIND, f"it reports an impossible value: {error}")
    if isinstance(error, ProtocolError):
        return AttemptError("broken stream", str(error))
    return AttemptError("connection", str(getattr(error, "strerror", None) or error) or type(error).__name__)


def of_status(status: int, headers: Mapping[str, str], body: bytes) -> AttemptError:
    """The failure for a response other than 200."""
    if 300 <= status < 400:
        reason = f"status {status}: it redirects to {headers.get('location', 'nowhere')}; use that URL (api_base_url)"
        return AttemptError(f"status {status}", reason, RetryOutlook.ENDPOINT)
    message, code = message_of(body, headers.get("content-type", ""))
    return _of_code(status, message or http.client.responses.get(status, "no reason is given"), code, _wait(headers))


def of_event(error: Any) -> AttemptError:
    """The failure for an ``error`` event of a stream."""
    message, code = _message({"error": error})
    status = error.get("status") or error.get("code") if isinstance(error, Mapping) else None
    if isinstance(status, int) and 400 <= status < 600:
        return _of_code(status, message, code, None)
    return AttemptError("server error", f"the server aborted: {message}")


def _of_code(status: int, message: str, code: str, wait: float | None) -> AttemptError:
    reason = f"status {status}: {message}"
    if code == "insufficient_quota":
        return AttemptError("quota", reason, RetryOutlook.ENDPOINT)
    if status == 429:
        return AttemptError("rate limit", reason, RetryOutlook.BUSY, wait)
    kind = f"status {status}"
    if status >= 500 or status in RETRIED_STATUS:
        return AttemptError(kind, reason, RetryOutlook.TEMPORARY, wait)
    if status in ENDPOINT_STATUS:
        return AttemptError(kind, reason, RetryOutlook.ENDPOINT)
    if code == "context_length_exceeded" or re.search(r"context (length|size|window)", message):
        reason += " (a shorter prompt or a lower max_tokens would do)"
        kind = ContextWindowError.KIND
    return AttemptError(kind, reason, RetryOutlook.REQUEST)


def message_of(body: bytes, content_type: str) -> tuple[str, str]:
    """Message and code in the body of an error response, "" if absent."""
    text = body.decode("utf-8", "replace")
    try:
        return _message(json.loads(text))
    except (ValueError, RecursionError):
        pass
    if "html" in content_type or text.lstrip()[:1] == "<":
        title = _title(text)
        return f"an HTML page {shortened(html.unescape(title))!r}" if title else "an HTML page", ""
    return text, ""


def _title(page: str) -> str:
    """The title of an HTML page, "" without one, in linear time."""
    _, _, rest = re.sub("(?i)<(/?)title", r"<\1title", page).partition("<title")
    title, end, _ = rest.partition(">")[2].partition("</title")
    return title if end else ""


def _message(content: Any) -> tuple[str, str]:
    found = content.get("error") or content if isinstance(content, Mapping) else content
    if isinstance(found, Mapping):
        message = found.get("message") or found.get("detail") or json.dumps(found)
        return str(message), str(found.get("code") or found.get("type") or "")
    return str(found), ""


def shortened(text: str) -> str:
    """The text as one line of bounded length. Redact secrets first."""
    line = visible(" ".join(text.split()))
    return line if len(line) <= MAX_REASON else f"{line[:MAX_REASON]}..."


def _wait(headers: Mapping[str, str]) -> float | None:
    """Seconds of ``Retry-After`` (seconds or a date); None if absent, invalid or too long."""
    value = headers.get("retry-after", "").strip()
    try:
        seconds = float(value or "nan")
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, OverflowError, TypeError, OSError, IndexError):
            return None
    return max(0.0, seconds) if seconds <= MAX_WAIT else None
