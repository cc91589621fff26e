"""Servers of the API back end: URLs, keys, and which one gets the next request."""

from __future__ import annotations

import base64
import logging
import os
import re
import threading
import time
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from ianvs_specdec.backends.api.secrets import redacted_path, secret_segments
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.settings import Settings, Text
from ianvs_specdec.net import LOOPBACK

if TYPE_CHECKING:
    import ssl

log = logging.getLogger(__name__)

FAILURES_TO_REST = 5
"""Consecutive failures after which an endpoint rests."""
FIRST_REST, MAX_REST = 1.0, 60.0
"""Seconds."""


class EndpointOptions(Settings):
    """An entry of ``api_endpoints``."""

    noun = "key"

    base_url: Text
    key_env: Text | None = None
    model: Text | None = None
    weight: Annotated[float, Field(gt=0)] = 1.0


@dataclass(frozen=True)
class Endpoint:
    """A configured server. ``base_url``: a URL or an environment variable with one."""

    base_url: str
    key_env: str
    model: str
    weight: float = 1.0
    option: str = "api_base_url"

    @classmethod
    def parse(cls, value: Any, model: str, key_env: str) -> Endpoint:
        """An entry of ``api_endpoints``. Raises UserError."""
        option = "api_endpoints"
        if not isinstance(value, Mapping):
            raise UserError(f"{option} must be a list of mappings with base_url", key=option)
        try:
            given = EndpointOptions.parse(value)
        except UserError as error:
            raise UserError(f"{option}: {error}", key=option) from error
        return cls(given.base_url, given.key_env or key_env, given.model or model, given.weight, option)

    def url(self) -> str:
        """Raises UserError for an unset environment variable or an invalid URL."""
        url = self.base_url if not self._from_environment else os.environ.get(self.base_url, "").strip()
        if "://" not in url:
            message = f"the environment variable {self.base_url} ({self.option}) holds no URL"
            raise UserError(f"{message}; set it, or write the URL itself under {self.option}", key=self.option)
        try:
            parts = urllib.parse.urlsplit(url)
            valid = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1) and url.isascii()
        except ValueError:
            valid = False
        if not valid or re.search(r"[\s\x00-\x1f\x7f]", url):
            raise UserError(f"{self.option} must be a URL that begins with http:// or https://", key=self.option)
        return re.sub(r"/chat/completions/*(?=$|[?#])", "", url)

    def server(self) -> str:
        """The URL for display and records: no user name, password or query; a path from the environment is redacted."""
        parts = urllib.parse.urlsplit(self.url())
        path = redacted_path(parts.path.rstrip("/")) if self._from_environment else parts.path.rstrip("/")
        return urllib.parse.urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], path, "", ""))

    @property
    def _from_environment(self) -> bool:
        return "://" not in self.base_url

    def host(self) -> str:
        return urllib.parse.urlsplit(self.url()).hostname or ""

    def key(self) -> str:
        """The key; may be "" for a server on this machine. Raises UserError."""
        key = os.environ.get(self.key_env, "").strip()
        if not key and not self.userinfo() and self.host() not in LOOPBACK:
            reason = f"the environment variable {self.key_env} (api_key_env) holds no API key"
            raise UserError(f"{reason}; a server that wants none is content with any text", key="api_key_env")
        if not key.isascii() or not key.isprintable():
            reason = f"the environment variable {self.key_env} (api_key_env) holds no API key but other text"
            raise UserError(reason, key="api_key_env")
        return key

    def target(self) -> str:
        """Request target of chat completions: path and query."""
        parts = urllib.parse.urlsplit(self.url())
        return f"{parts.path.rstrip('/')}/chat/completions{'?' if parts.query else ''}{parts.query}"

    def authorization(self) -> str:
        """Value of the header: user name and password of the URL, else the key; "" without both."""
        if pair := self.userinfo():
            return f"Basic {base64.b64encode(pair.encode()).decode()}"
        key = self.key()
        return f"Bearer {key}" if key else ""

    def secrets(self) -> list[str]:
        parts = urllib.parse.urlsplit(self.url())
        queried = [value for _, value in urllib.parse.parse_qsl(parts.query)]
        pair = self.userinfo()
        known = [
            self.key(),
            # Without a password, the user name is the secret.
            urllib.parse.unquote(parts.password or parts.username or ""),
            pair and base64.b64encode(pair.encode()).decode(),
            urllib.parse.unquote(parts.fragment),
        ]
        path = [urllib.parse.unquote(part) for part in secret_segments(parts.path)] if self._from_environment else []
        return [secret for secret in (*known, *queried, *path) if secret]

    def userinfo(self) -> str:
        """``user:password`` of the URL, which replaces the key; "" without."""
        return urllib.parse.unquote(urllib.parse.urlsplit(self.url()).netloc.rpartition("@")[0])


def trusted(file: str | None) -> ssl.SSLContext | None:
    """A context that trusts only the certificates in a PEM file; None without a file. Raises UserError."""
    if file is None:
        return None
    import ssl

    try:
        return ssl.create_default_context(cafile=file)
    except ssl.SSLError as error:
        raise UserError(f"api_ca: {file} has no certificate in PEM", key="api_ca") from error
    except OSError as error:
        raise UserError(f"api_ca: {file}: {error.strerror}", key="api_ca") from error


class _State:
    """Health and load of an endpoint."""

    def __init__(self) -> None:
        self.in_flight = self.served = self.failures = 0
        self.answered = False
        self.busy_until = self.rests_until = float("-inf")
        self.rest = FIRST_REST
        self.refused, self.refused_until = "", float("-inf")

    def healthy(self, now: float) -> bool:
        """Whether it may get a request: after a rest only one at a time, until one succeeds."""
        probed = self.failures >= FAILURES_TO_REST and self.in_flight > 0
        return max(self.busy_until, self.rests_until) <= now and not probed


class Endpoints:
    """Selects endpoints: the least loaded healthy one, by weight.

    After ``FAILURES_TO_REST`` failures an endpoint rests for ``FIRST_REST`` seconds. Then it gets one request at a
    time, and rests twice as long after each failure, up to ``MAX_REST``. If none is healthy, resting ones are used.
    ``Retry-After`` is obeyed. One that would refuse any request (wrong key, no such model) rests for ``MAX_REST``.
    """

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self._states = {endpoint: _State() for endpoint in endpoints}
        self._lock = threading.Lock()

    def choose(self, now: float, but: Endpoint | None = None) -> tuple[Endpoint | None, float]:
        """Returns an endpoint, in use until ``leave``, and ``now``; or None and when to retry, infinity if all refuse.

        ``but``: an endpoint to avoid if possible.
        """
        with self._lock:
            for state in self._states.values():
                state.refused = state.refused if now < state.refused_until else ""
            open_ones = {endpoint: state for endpoint, state in self._states.items() if not state.refused}
            free = {e: s for e, s in open_ones.items() if s.busy_until <= now}
            if not free:
                return None, min((s.busy_until for s in open_ones.values()), default=float("inf"))
            able = {e: s for e, s in free.items() if s.healthy(now)} or free
            chosen = min(able, key=lambda e: (e == but, able[e].in_flight / e.weight, (able[e].served + 1) / e.weight))
            state = able[chosen]
            state.in_flight += 1
            state.served += 1
            return chosen, now

    def other_than(self, endpoint: Endpoint, now: float) -> bool:
        """Whether another endpoint is healthy now."""
        with self._lock:
            others = [state for other, state in self._states.items() if other != endpoint and not state.refused]
            return any(state.healthy(now) for state in others)

    def leave(self, endpoint: Endpoint, now: float) -> None:
        """End a request, after ``succeeded`` or ``failed``. A failing endpoint begins to rest."""
        with self._lock:
            state = self._states[endpoint]
            state.in_flight -= 1
            if state.failures >= FAILURES_TO_REST and state.rests_until <= now:
                state.rests_until = now + state.rest
                state.rest = min(MAX_REST, 2 * state.rest)

    def succeeded(self, endpoint: Endpoint) -> None:
        with self._lock:
            state = self._states[endpoint]
            state.answered, state.failures = True, 0
            state.rest, state.rests_until = FIRST_REST, float("-inf")

    def has_answered(self, endpoint: Endpoint) -> bool:
        """Whether it has ever answered a request."""
        with self._lock:
            return self._states[endpoint].answered

    def failed(self, endpoint: Endpoint) -> None:
        with self._lock:
            state = self._states[endpoint]
            state.failures += 1
            if state.failures == FAILURES_TO_REST:
                log.warning(
                    "%s failed %d times in a row: no request for %g s", endpoint.server(), state.failures, state.rest
                )

    def busy(self, endpoint: Endpoint, until: float) -> None:
        """The server requested no requests until then."""
        with self._lock:
            state = self._states[endpoint]
            state.busy_until = max(state.busy_until, until)

    def refused(self, endpoint: Endpoint, reason: str) -> bool:
        """The endpoint would refuse any request. Returns whether another one is left."""
        with self._lock:
            first = not self._states[endpoint].refused
            self._states[endpoint].refused = reason
            self._states[endpoint].refused_until = time.perf_counter() + MAX_REST
            others = any(not state.refused for state in self._states.values())
        if first and others:
            log.warning("%s is not asked any more for %g s: %s", endpoint.server(), MAX_REST, reason)
        return others

    def reasons(self) -> str:
        """Why endpoints are not used."""
        with self._lock:
            return "; ".join(f"{e.server()}: {s.refused}" for e, s in self._states.items() if s.refused)
