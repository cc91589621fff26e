"""The servers that can answer: where they are, which key they want, which one to ask next."""

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

from ianvs_specdec.backends.api.secrets import parts_of_path, told_path
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.settings import Settings, Text
from ianvs_specdec.net import LOOPBACK

if TYPE_CHECKING:
    import ssl

log = logging.getLogger(__name__)

FAILURES_TO_REST = 5
"""Failures in a row after which an endpoint rests."""
FIRST_REST, LONGEST_REST = 1.0, 60.0


class EndpointOptions(Settings):
    """An entry of ``api_endpoints``."""

    noun = "key"

    base_url: Text
    key_env: Text | None = None
    model: Text | None = None
    weight: Annotated[float, Field(gt=0)] = 1.0


@dataclass(frozen=True)
class Endpoint:
    """A server as the settings name it. ``base_url`` is a URL or the name of an environment variable that holds it."""

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
        """Raises UserError if it is to come from an environment variable that is not set, or can be no server's."""
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
        """The URL as it may be shown and recorded: without user name, password and query, and of a path that the
        environment holds only what is no secret.
        """
        parts = urllib.parse.urlsplit(self.url())
        path = told_path(parts.path.rstrip("/")) if self._from_environment else parts.path.rstrip("/")
        return urllib.parse.urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], path, "", ""))

    @property
    def _from_environment(self) -> bool:
        return "://" not in self.base_url

    def host(self) -> str:
        return urllib.parse.urlsplit(self.url()).hostname or ""

    def key(self) -> str:
        """The key, "" where a server on this machine may do without. Raises UserError."""
        key = os.environ.get(self.key_env, "").strip()
        if not key and not self.userinfo() and self.host() not in LOOPBACK:
            reason = f"the environment variable {self.key_env} (api_key_env) holds no API key"
            raise UserError(f"{reason}; a server that wants none is content with any text", key="api_key_env")
        if not key.isascii() or not key.isprintable():
            reason = f"the environment variable {self.key_env} (api_key_env) holds no API key but other text"
            raise UserError(reason, key="api_key_env")
        return key

    def target(self) -> str:
        """Path and query of chat completions."""
        parts = urllib.parse.urlsplit(self.url())
        return f"{parts.path.rstrip('/')}/chat/completions{'?' if parts.query else ''}{parts.query}"

    def authorization(self) -> str:
        """The header's value: the URL's user name and password where it has them, else the key; "" for neither."""
        if pair := self.userinfo():
            return f"Basic {base64.b64encode(pair.encode()).decode()}"
        key = self.key()
        return f"Bearer {key}" if key else ""

    def secrets(self) -> list[str]:
        parts = urllib.parse.urlsplit(self.url())
        queried = [value for _, value in urllib.parse.parse_qsl(parts.query)]
        pair = self.userinfo()
        told = [
            self.key(),
            # Without a password, the name is one.
            urllib.parse.unquote(parts.password or parts.username or ""),
            pair and base64.b64encode(pair.encode()).decode(),
            urllib.parse.unquote(parts.fragment),
        ]
        path = [urllib.parse.unquote(part) for part in parts_of_path(parts.path)] if self._from_environment else []
        return [secret for secret in (*told, *queried, *path) if secret]

    def userinfo(self) -> str:
        """User name and password of the URL, which replace the key; "" without them."""
        return urllib.parse.unquote(urllib.parse.urlsplit(self.url()).netloc.rpartition("@")[0])


def trusted(file: str | None) -> ssl.SSLContext | None:
    """What trusts the certificates of a PEM file alone; None without a file. Raises UserError."""
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
    """How an endpoint is doing."""

    def __init__(self) -> None:
        self.in_flight = self.served = self.failures = 0
        self.answered = False
        self.busy_until = self.rests_until = float("-inf")
        self.rest = FIRST_REST
        self.refused, self.refused_until = "", float("-inf")

    def well(self, now: float) -> bool:
        """Whether it may be asked: after a rest only one request at a time, until one succeeds."""
        probed = self.failures >= FAILURES_TO_REST and self.in_flight > 0
        return max(self.busy_until, self.rests_until) <= now and not probed


class Endpoints:
    """Which endpoint to ask next: of those that are well the least busy one, by weight.

    An endpoint that fails ``FAILURES_TO_REST`` times in a row rests for a second. Then one request is sent there, and
    the endpoint rests for twice as long, up to a minute, unless that one succeeds. Where no other one is well, it is
    asked nevertheless: pauses and budget of the requests then are what spares it. One that asked to be left alone for a
    while is, and one that would answer no request (wrong key, no such model) not for a minute.
    """

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self._states = {endpoint: _State() for endpoint in endpoints}
        self._lock = threading.Lock()

    def choose(self, now: float, but: Endpoint | None = None) -> tuple[Endpoint | None, float]:
        """An endpoint, counted as busy until ``leave``, and now; or None, and the time to ask again, infinity where
        all have refused. ``but`` is chosen only where no other one can be.
        """
        with self._lock:
            for state in self._states.values():
                state.refused = state.refused if now < state.refused_until else ""
            open_ones = {endpoint: state for endpoint, state in self._states.items() if not state.refused}
            free = {e: s for e, s in open_ones.items() if s.busy_until <= now}
            if not free:
                return None, min((s.busy_until for s in open_ones.values()), default=float("inf"))
            able = {e: s for e, s in free.items() if s.well(now)} or free
            chosen = min(able, key=lambda e: (e == but, able[e].in_flight / e.weight, (able[e].served + 1) / e.weight))
            state = able[chosen]
            state.in_flight += 1
            state.served += 1
            return chosen, now

    def other_than(self, endpoint: Endpoint, now: float) -> bool:
        """Whether another endpoint could be asked right away."""
        with self._lock:
            others = [state for other, state in self._states.items() if other != endpoint and not state.refused]
            return any(state.well(now) for state in others)

    def leave(self, endpoint: Endpoint, now: float) -> None:
        """A request has ended, after ``succeeded`` or ``failed`` where it was either. Now the endpoint rests if it has
        to.
        """
        with self._lock:
            state = self._states[endpoint]
            state.in_flight -= 1
            if state.failures >= FAILURES_TO_REST and state.rests_until <= now:
                state.rests_until = now + state.rest
                state.rest = min(LONGEST_REST, 2 * state.rest)

    def succeeded(self, endpoint: Endpoint) -> None:
        with self._lock:
            state = self._states[endpoint]
            state.answered, state.failures = True, 0
            state.rest, state.rests_until = FIRST_REST, float("-inf")

    def has_answered(self, endpoint: Endpoint) -> bool:
        """Whether it has ever answered a request as it should."""
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
        """The server asked to be left alone until then."""
        with self._lock:
            state = self._states[endpoint]
            state.busy_until = max(state.busy_until, until)

    def refused(self, endpoint: Endpoint, reason: str) -> bool:
        """The endpoint would answer no request; whether any other would."""
        with self._lock:
            first = not self._states[endpoint].refused
            self._states[endpoint].refused = reason
            self._states[endpoint].refused_until = time.perf_counter() + LONGEST_REST
            others = any(not state.refused for state in self._states.values())
        if first and others:
            log.warning("%s is not asked any more for %g s: %s", endpoint.server(), LONGEST_REST, reason)
        return others

    def reasons(self) -> str:
        """Why no endpoint is left."""
        with self._lock:
            return "; ".join(f"{e.server()}: {s.refused}" for e, s in self._states.items() if s.refused)
