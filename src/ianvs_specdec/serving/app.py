"""The HTTP endpoints: ``/v1/chat/completions``, ``/v1/completions``, ``/v1/models``, ``/health``, ``/metrics``."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ianvs_specdec.common.types import Completion, Sampling
from ianvs_specdec.serving.answers import ChatAnswer, TextAnswer
from ianvs_specdec.serving.engine import DISCONNECTED, Choices, EngineClient, deadline_passed
from ianvs_specdec.serving.metrics import Counts
from ianvs_specdec.serving.protocol import RequestError, check_model, event
from ianvs_specdec.serving.requests import ChatRequest, parse_chat, parse_completion

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
BODY_SECONDS = 60.0
"""Timeout for receiving a request."""
STALLED_SECONDS = 30.0
"""Time after the deadline in which a client must have read its answer."""
LOCAL_HOST = re.compile(r"(localhost|127(\.\d+){3}|\[::1])(:\d+)?", re.IGNORECASE)
MAX_HEADER = 200
"""Characters of an ``x-specdec-`` header."""
STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # Asks proxies not to buffer the stream.
    (b"x-accel-buffering", b"no"),
]

Parse = Callable[[bytes, Sequence[str], Sampling], ChatRequest]


@dataclass(frozen=True)
class Service:
    """Settings of the endpoints. ``models``: names; ``key`` "": no authentication; ``deadline``: seconds;
    ``max_body``: bytes.

    ``local_only``: requests must have a Host of this machine, and no foreign Origin. Without a key, a web page whose
    name points to this machine (DNS rebinding) could send requests. ``window``: context length in tokens.
    """

    models: Sequence[str]
    defaults: Sampling
    key: str
    deadline: float
    max_body: int
    local_only: bool = False
    window: int | None = None


def create_app(service: Service, engine: EngineClient, metrics: Counts, further: Sequence[Route] = ()) -> Starlette:
    """The application, with ``further`` endpoints."""
    window = {} if service.window is None else {"max_model_len": service.window}

    def model(name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": 0, "owned_by": "ianvs-specdec", **window}

    def with_key(answer: Callable[[Request], Response]) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            try:
                _authorize(request, service.key)
                return answer(request)
            except RequestError as error:
                return error_response(error)

        return endpoint

    def one_model(request: Request) -> Response:
        check_model(name := request.path_params["name"], service.models)
        return JSONResponse(model(name))

    def all_models(request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [model(name) for name in service.models]})

    async def health(request: Request) -> Response:
        status = {"status": "stopping" if engine.draining else "ok"}
        emulation = engine.emulation()
        emulated = {} if emulation is None else {"emulated": dict(emulation)}
        return JSONResponse({**status, **emulated}, 503 if engine.draining else 200)

    async def show_metrics(request: Request) -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        message = f"{request.method} {request.url.path[:256]}: {error.detail}"
        return error_response(RequestError(error.status_code, message, headers=error.headers))

    chat = _CompletionEndpoint(service, engine, metrics, parse_chat, ChatAnswer)
    completion = _CompletionEndpoint(service, engine, metrics, parse_completion, TextAnswer)
    return Starlette(
        routes=[
            Route(CHAT, chat, methods=["POST"]),
            Route(COMPLETIONS, completion, methods=["POST"]),
            Route("/v1/models", with_key(all_models)),
            Route("/v1/models/{name:path}", with_key(one_model)),
            Route("/health", health),
            Route("/metrics", show_metrics),
            *further,
        ],
        exception_handlers={HTTPException: http_error},
        middleware=[Middleware(_Guard, local_only=service.local_only, metrics=metrics)],
    )


class _Guard:
    """Middleware that rejects requests with an ambiguous length, and foreign hosts (``Service.local_only``).

    Two length headers, or one that the HTTP version does not have, allow request smuggling through a proxy.
    """

    def __init__(self, app: ASGIApp, local_only: bool, metrics: Counts) -> None:
        self._app, self._local_only, self._metrics = app, local_only, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = self._check(Request(scope)) if scope["type"] == "http" else None
        if error is None:
            await self._app(scope, receive, send)
            return
        if scope["path"] in (CHAT, COMPLETIONS):
            self._metrics.outcome("rejected")
        await error_response(error)(scope, receive, send)

    def _check(self, request: Request) -> RequestError | None:
        headers, scope = request.headers, request.scope
        http_1_0 = scope["http_version"] == "1.0"
        if "transfer-encoding" in headers and ("content-length" in headers or http_1_0):
            message = "a request has either a Content-Length or, in HTTP/1.1, a Transfer-Encoding"
            return RequestError(400, message, headers={"Connection": "close"})
        host = headers.get("host", "localhost" if http_1_0 else "")
        foreign = headers.get("origin", own := f"{scope['scheme']}://{host}") != own
        if self._local_only and (foreign or not LOCAL_HOST.fullmatch(host)):
            message = "without a key (--api-key-env), this server is for localhost, 127.x.x.x and [::1] only"
            return RequestError(403, message, code="foreign_host")
        return None


def error_response(error: RequestError) -> Response:
    return JSONResponse(error.body, error.status, headers=error.headers)


def _authorize(request: Request, key: str) -> None:
    given = request.headers.get("authorization", "")
    # Headers are bytes, which Starlette decodes as Latin-1.
    if key and not hmac.compare_digest(given.encode("latin-1"), f"Bearer {key}".encode()):
        message = "this server requires a key in the header Authorization: Bearer KEY"
        raise RequestError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


async def read_body(request: Request, service: Service) -> bytes:
    """Check key, type and size of a request and return its JSON text. Raises RequestError."""
    _authorize(request, service.key)
    # Web pages can send other types without a preflight request.
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise RequestError(415, "the body must be of Content-Type application/json")
    limit = service.max_body
    too_long = RequestError(413, f"the body is longer than {limit} bytes (--max-body)", code="body_too_long")
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > limit:
        raise too_long

    async def read() -> bytes:
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > limit:
                raise too_long
        return bytes(body)

    try:
        return await asyncio.wait_for(read(), BODY_SECONDS)
    except TimeoutError:
        raise RequestError(408, f"the body did not arrive within {BODY_SECONDS:g} s", code="body_too_slow") from None


class _CompletionEndpoint:
    """ASGI application. The status is sent with the first piece: a request that fails in the queue gets an HTTP error,
    not a stream with an error in it."""

    def __init__(
        self, service: Service, engine: EngineClient, metrics: Counts, parse: Parse, answer: type[ChatAnswer]
    ) -> None:
        self._service, self._engine, self._metrics = service, engine, metrics
        self._parse, self._answer = parse, answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service = self._service
        try:
            body = await read_body(Request(scope, receive), service)
            chat = self._parse(body, service.models, service.defaults)
            choices = Choices(self._engine, chat)
        except ClientDisconnect:
            self._metrics.outcome("disconnected")
            return
        except RequestError as error:
            self._metrics.outcome(error.outcome)
            await error_response(error)(scope, receive, send)
            return
        await self._serve(choices, receive, _Reply(self._answer(chat), chat, send))

    async def _serve(self, choices: Choices, receive: Receive, reply: _Reply) -> None:
        """Send the answer until it is complete, the client disconnects or the deadline passes."""
        loop = asyncio.get_running_loop()
        watcher = asyncio.ensure_future(self._watch(choices, receive))
        writer = asyncio.ensure_future(reply.write(choices))
        deadline = self._service.deadline
        timers = [
            loop.call_later(deadline, choices.end, deadline_passed(deadline)),
            loop.call_later(deadline + STALLED_SECONDS, writer.cancel),
        ]
        try:
            # Cancelled if the client does not read its answer, or the server stops at once.
            with contextlib.suppress(asyncio.CancelledError):
                await writer
        finally:
            for timer in timers:
                timer.cancel()
            watcher.cancel()
            choices.end(DISCONNECTED)

    async def _watch(self, choices: Choices, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        choices.end(DISCONNECTED)


def _routing_headers(routing: Mapping[str, Any] | None) -> dict[str, str]:
    """``x-specdec-`` headers with side, score and reason."""
    values = {name: (routing or {}).get(name) for name in ("side", "score", "reason")}
    # Headers are single lines of printable ASCII.
    texts = {name: re.sub("[^ -~]+", " ", str(value)) for name, value in values.items() if value is not None}
    return {f"x-specdec-{name}": text[:MAX_HEADER].strip() for name, text in texts.items()}


class _Reply:
    """Sends one answer, as a stream or as a whole."""

    def __init__(self, answer: ChatAnswer, chat: ChatRequest, send: Send) -> None:
        self._answer, self._chat, self._send = answer, chat, send
        self._started = False
        self._begun: set[int] = set()
        self._done: dict[int, Completion] = {}

    async def write(self, choices: Choices) -> None:
        """Return when the answer is complete or has failed."""
        while len(self._done) < len(choices.jobs):
            data, events = b"", await choices.events()
            self._answer.routing = choices.routing
            for index, item in events:
                if isinstance(item, RequestError):
                    choices.end(item)
                    if item is not DISCONNECTED:
                        await self._fail(item, data)
                    return
                if isinstance(item, Completion):
                    self._done[index] = item
                if self._chat.stream:
                    data += self._event(index, item)
            completions = [self._done[index] for index in sorted(self._done)]
            last = len(completions) == len(choices.jobs)
            if last and not self._chat.stream:
                await self._whole(200, self._answer.body(completions), {})
            elif data:
                await self._stream(data + (self._answer.end(completions) if last else b""), last=last)

    def _event(self, index: int, item: str | Completion) -> bytes:
        data = b"" if index in self._begun else self._answer.first(index)
        self._begun.add(index)
        if isinstance(item, Completion):
            return data + self._answer.last(index, item)
        return data + self._answer.piece(index, item)

    async def _fail(self, error: RequestError, data: bytes) -> None:
        """Send the error; in a stream, after the pending ``data``."""
        if self._started or data:
            await self._stream(data + event(error.body), last=True)
        else:
            await self._whole(error.status, error.body, error.headers)

    async def _whole(self, status: int, body: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        response = JSONResponse(body, status, headers={**headers, **_routing_headers(self._answer.routing)})
        await self._send({"type": "http.response.start", "status": status, "headers": response.raw_headers})
        await self._send({"type": "http.response.body", "body": response.body})

    async def _stream(self, data: bytes, *, last: bool) -> None:
        if not self._started:
            self._started = True
            routing = _routing_headers(self._answer.routing)
            headers = [*STREAM_HEADERS, *((name.encode(), text.encode()) for name, text in routing.items())]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send({"type": "http.response.body", "body": data, "more_body": not last})
