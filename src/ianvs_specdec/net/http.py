"""HTTP/1.1 client for one server, with persistent connections and the proxy that the environment names.

Messages are parsed by the standard library: 0.04 ms of processor time per chunk of a stream, 0.1 ms with h11 (httpcore,
httpx). On a machine shared with the server, this time is part of the measurement.
"""

from __future__ import annotations

import base64
import functools
import http.client
import ssl
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.net import LOOPBACK
from ianvs_specdec.net.sockets import BLOCK, Connection, Sockets, Timeouts, Traffic

IDLE_SECONDS = 4.0
"""How long an unused connection is kept: less than the 5 s after which common servers close it."""
DRAIN_SECONDS = 0.25
"""Waiting time for the end of a reply, to reuse its connection."""


class ProtocolError(Exception):
    """Invalid or incomplete HTTP response."""


class Reply:
    """A response whose headers have arrived."""

    def __init__(self, response: http.client.HTTPResponse, connection: Connection) -> None:
        self._response, self._connection = response, connection
        self.status = response.status
        self.headers: Mapping[str, str] = {name.lower(): value for name, value in response.getheaders()}

    def read(self) -> bytes:
        """The next bytes of the body, b"" at its end."""
        try:
            return self._response.read1(BLOCK)
        except (http.client.HTTPException, ValueError) as error:
            raise ProtocolError("the connection ended in the middle of the answer") from error

    def read_all(self, limit: int) -> bytes:
        """The body, cut after about ``limit`` bytes."""
        body = b""
        while len(body) < limit and (chunk := self.read()):
            body += chunk
        return body

    def drain(self) -> bool:
        """Read the rest of the body. Returns whether the connection can be reused."""
        deadline = min(self._connection.timeouts.deadline, time.perf_counter() + DRAIN_SECONDS)
        self._connection.timeouts = Timeouts(DRAIN_SECONDS, deadline)
        with suppress(Exception):
            while not self._response.isclosed() and self.read():
                continue
            return not self._response.will_close
        return False


class Client:
    """Requests to one server from any number of threads. ``trust``: CA certificates instead of the system's."""

    def __init__(self, url: str, headers: Mapping[str, str], trust: ssl.SSLContext | None = None) -> None:
        parts = urllib.parse.urlsplit(url)
        host = parts.hostname or ""
        self._secure = parts.scheme == "https"
        self._server = host, parts.port or (443 if self._secure else 80)
        place = f"[{host}]" if ":" in host else host
        self._given_trust = trust
        self._headers = {"Host": place if parts.port is None else f"{place}:{parts.port}", **headers}
        self._proxy = _proxy(parts.scheme, parts.netloc.rpartition("@")[2])
        self._prefix = ""
        if self._proxy is not None and not self._secure:
            self._prefix = f"http://{self._headers['Host']}"
            self._headers |= _proxy_authorization(self._proxy)
        self._idle: list[tuple[float, Connection]] = []
        self._sockets = Sockets()

    @functools.cached_property
    def _trust(self) -> ssl.SSLContext:
        # The system's certificates, or those that SSL_CERT_FILE or SSL_CERT_DIR name.
        return self._given_trust or ssl.create_default_context()

    @contextmanager
    def post(self, target: str, body: bytes, timeouts: Timeouts, traffic: Traffic) -> Iterator[Reply]:
        """Send ``body`` (JSON) to ``target`` (path and query) and yield the reply when its headers have arrived.

        Raises OSError (including TimeoutError and ``ssl.SSLError``), ProtocolError, DeadlineError or
        InterruptedRequest. Bytes of failed requests are counted in ``traffic``, too.
        """
        connection = self._reuse() or self._connect(timeouts, traffic)
        connection.timeouts, connection.traffic = timeouts, traffic
        reusable = False
        try:
            lines = {**self._headers, "Content-Type": "application/json", "Content-Length": str(len(body))}
            connection.sendall(_head(f"POST {self._prefix}{target}", lines) + body)
            reply = Reply(_response(connection, "POST"), connection)
            yield reply
            reusable = reply.drain()
        finally:
            if reusable:
                self._idle.append((time.perf_counter(), connection))
            else:
                connection.close()

    def close(self) -> None:
        """End all requests, also those waiting in other threads: each raises InterruptedRequest."""
        self._sockets.interrupt()
        while self._idle:
            self._idle.pop()[1].close()

    def _reuse(self) -> Connection | None:
        self._sockets.check()
        while self._idle:
            with suppress(IndexError):  # another thread took it
                since, connection = self._idle.pop()
                if time.perf_counter() - since < IDLE_SECONDS and connection.alive():
                    return connection
                connection.close()
        return None

    def _connect(self, timeouts: Timeouts, traffic: Traffic) -> Connection:
        proxy = self._proxy
        address = (proxy.hostname or "", proxy.port or 80) if proxy else self._server
        connection = Connection(self._sockets.connect(address, timeouts), self._sockets, timeouts, traffic)
        try:
            if proxy and proxy.scheme == "https":
                connection.secure(self._trust, address[0])
            if proxy and self._secure:
                place = f"{self._headers['Host'].removesuffix(f':{self._server[1]}')}:{self._server[1]}"
                connection.sendall(_head(f"CONNECT {place}", {"Host": place, **_proxy_authorization(proxy)}))
                response = _response(connection, "CONNECT")
                if response.status != 200:
                    raise OSError(f"the proxy {proxy.hostname} answered {response.status}")
            if self._secure:
                connection.secure(self._trust, self._server[0])
        except BaseException:
            connection.close()
            raise
        return connection


def _response(connection: Connection, method: str) -> http.client.HTTPResponse:
    response = http.client.HTTPResponse(connection, method=method)  # type: ignore[arg-type]
    try:
        response.begin()
    except ConnectionError as error:
        raise ConnectionError("the server closed the connection without an answer") from error
    except (http.client.HTTPException, ValueError) as error:
        raise ProtocolError(f"the response is not HTTP ({type(error).__name__})") from error
    return response


def _head(request: str, headers: Mapping[str, str]) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"{request} HTTP/1.1\r\n{lines}\r\n".encode("latin-1")


def _proxy(scheme: str, place: str) -> urllib.parse.SplitResult | None:
    if urllib.parse.urlsplit(f"//{place}").hostname in LOOPBACK or urllib.request.proxy_bypass(place):
        return None
    proxies = urllib.request.getproxies()
    url = proxies.get(scheme) or proxies.get("all")
    if not url:
        return None
    parts = urllib.parse.urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in ("http", "https"):
        raise UserError(f"{parts.scheme} proxy in the environment: use an http or https proxy, or NO_PROXY={place}")
    return parts


def _proxy_authorization(proxy: urllib.parse.SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    pair = f"{urllib.parse.unquote(proxy.username)}:{urllib.parse.unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
