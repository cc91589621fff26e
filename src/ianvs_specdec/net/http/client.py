"""HTTP/1.1 with one server: connections kept open between requests, through a proxy where the environment names one.

For streams of many small pieces, on machines where the client's own work is part of what is measured: a request costs
a third of a millisecond.
"""

from __future__ import annotations

import base64
import functools
import http.client
import ssl
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.net import LOOPBACK
from ianvs_specdec.net.http.wire import BLOCK, Interruption, Patience, Traffic, Wire

KEPT_SECONDS = 4.0
"""How long an unused connection is kept. Common servers close theirs after 5 s, and a request on its way just then is
lost.
"""
FAREWELL_SECONDS = 0.25


class ProtocolError(Exception):
    """What came over the connection is not HTTP, or not all of it."""


class Reply:
    """A response whose head has arrived."""

    def __init__(self, response: http.client.HTTPResponse, wire: Wire) -> None:
        self._response, self._wire = response, wire
        self.status = response.status
        self.headers: Mapping[str, str] = {name.lower(): value for name, value in response.getheaders()}

    def read(self) -> bytes:
        """What has arrived, waiting for the first of it; b"" at the end of the body."""
        try:
            return self._response.read1(BLOCK)
        except (http.client.HTTPException, ValueError) as error:
            raise ProtocolError("the connection ended in the middle of the answer") from error

    def read_all(self, limit: int) -> bytes:
        """The body, at most about ``limit`` bytes of it."""
        body = b""
        while len(body) < limit and (piece := self.read()):
            body += piece
        return body

    def complete(self) -> bool:
        """Whether the reply has ended as it should, so that its connection can serve again. Waits a moment for it."""
        # A patient wait here would hold back an answer that is whole already.
        deadline = min(self._wire.patience.deadline, time.perf_counter() + FAREWELL_SECONDS)
        self._wire.patience = Patience(FAREWELL_SECONDS, deadline)
        try:
            while not self._response.isclosed() and self.read():
                continue
        except Exception:
            return False
        return not self._response.will_close


class Client:
    """Requests to one server, from any number of threads, one request at a time on a connection."""

    def __init__(self, url: str, headers: Mapping[str, str], interruption: Interruption) -> None:
        parts = urllib.parse.urlsplit(url)
        self._host = parts.hostname or ""
        self._secure = parts.scheme == "https"
        self._port = parts.port or (443 if self._secure else 80)
        self._interruption = interruption
        self._idle: list[tuple[float, Wire]] = []
        self._lock = threading.Lock()
        self._proxy = _proxy(parts.scheme, parts.netloc.rpartition("@")[2])
        authority = f"[{self._host}]" if ":" in self._host else self._host
        self._authority = authority if parts.port is None else f"{authority}:{parts.port}"
        self._prefix = ""
        if self._proxy is not None and not self._secure:
            self._prefix = f"http://{self._authority}"
            headers = {**headers, **_proxy_authorization(self._proxy)}
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in headers.items())

    @functools.cached_property
    def _trust(self) -> ssl.SSLContext:
        # The system's certificates, or those that SSL_CERT_FILE or SSL_CERT_DIR name.
        return ssl.create_default_context()

    @contextmanager
    def post(self, target: str, body: bytes, patience: Patience, traffic: Traffic) -> Iterator[Reply]:
        """Send ``body`` (JSON) to ``target`` (path and query) and yield the reply when its head is here.

        Raises OSError, with TimeoutError and ``ssl.SSLError`` among them, ProtocolError, DeadlineError or
        InterruptedRequest; bytes are counted in ``traffic`` whatever happens.
        """
        wire = self._connection(patience, traffic)
        kept = False
        try:
            head = (
                f"POST {self._prefix}{target} HTTP/1.1\r\nHost: {self._authority}\r\n{self._headers}"
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            wire.send(head.encode("latin-1") + body)
            reply = Reply(_response(wire, "POST"), wire)
            yield reply
            kept = reply.complete()
        finally:
            if kept:
                with self._lock:
                    self._idle.append((time.perf_counter(), wire))
            else:
                wire.close()

    def close(self) -> None:
        """Close unused connections."""
        with self._lock:
            unused, self._idle = self._idle, []
        for _, wire in unused:
            wire.close()

    def _connection(self, patience: Patience, traffic: Traffic) -> Wire:
        while True:
            self._interruption.check()
            with self._lock:
                since, wire = self._idle.pop() if self._idle else (0.0, None)
            if wire is None:
                return self._connect(patience, traffic)
            if time.perf_counter() - since < KEPT_SECONDS and wire.alive():
                wire.patience, wire.traffic = patience, traffic
                return wire
            wire.close()

    def _connect(self, patience: Patience, traffic: Traffic) -> Wire:
        proxy = self._proxy
        address = (proxy.hostname or "", proxy.port or 80) if proxy else (self._host, self._port)
        wire = Wire(address, patience, traffic, self._interruption)
        try:
            if proxy and proxy.scheme == "https":
                wire.secure(self._trust, address[0])
            if proxy and self._secure:
                self._tunnel(wire, proxy)
            if self._secure:
                wire.secure(self._trust, self._host)
        except BaseException:
            wire.close()
            raise
        return wire

    def _tunnel(self, wire: Wire, proxy: urllib.parse.SplitResult) -> None:
        place = f"{self._authority.removesuffix(f':{self._port}')}:{self._port}"
        headers = "".join(f"{name}: {value}\r\n" for name, value in _proxy_authorization(proxy).items())
        wire.send(f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n{headers}\r\n".encode("latin-1"))
        response = _response(wire, "CONNECT")
        if response.status != 200:
            raise OSError(f"the proxy {proxy.hostname} answered {response.status}")


def _response(wire: Wire, method: str) -> http.client.HTTPResponse:
    response = http.client.HTTPResponse(wire, method=method)  # type: ignore[arg-type]
    try:
        response.begin()
    except ConnectionError as error:
        raise ConnectionError("the server closed the connection without an answer") from error
    except (http.client.HTTPException, ValueError) as error:
        raise ProtocolError(f"what came is no HTTP response ({type(error).__name__})") from error
    return response


def _proxy(scheme: str, place: str) -> urllib.parse.SplitResult | None:
    if urllib.parse.urlsplit(f"//{place}").hostname in LOOPBACK or urllib.request.proxy_bypass(place):
        return None
    proxies = urllib.request.getproxies()
    url = proxies.get(scheme) or proxies.get("all")
    if not url:
        return None
    parts = urllib.parse.urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in ("http", "https"):
        raise UserError(f"the environment names a {parts.scheme} proxy; http and https ones work (or NO_PROXY={place})")
    return parts


def _proxy_authorization(proxy: urllib.parse.SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    pair = f"{urllib.parse.unquote(proxy.username)}:{urllib.parse.unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
