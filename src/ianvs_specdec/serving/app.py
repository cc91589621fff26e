"""The endpoints: ``/v1/chat/completions``, ``/v1/models``, ``/health``, ``/metrics``."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
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
from starlette.types import Message as Event

from ianvs_specdec.common.types import Completion, Sampling
from ianvs_specdec.serving.engine import DISCONNECTED, Job, Serving, deadline_passed
from ianvs_specdec.serving.metrics import Counts
from ianvs_specdec.serving.protocol import Answer, ChatRequest, event, parse
from ianvs_specdec.serving.refusal import Refusal, check_model

CHAT = "/v1/chat/completions"
BODY_SECONDS = 60.0
"""How long a client may take to send its request."""
STALLED_SECONDS = 30.0
"""How long beyond the deadline a client may take to read its answer."""
STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # Proxies are asked not to buffer the stream.
    (b"x-accel-buffering", b"no"),
]


@dataclass(frozen=True)
class Service:
    """What is served and how. ``models`` are names; ``key`` "" lets everybody in; ``deadline`` is in seconds,
    ``max_body`` in bytes.
    """

    models: Sequence[str]
    defaults: Sampling
    key: str
    deadline: float
    max_body: int


def create_app(service: Service, engine: Serving, metrics: Counts, further: Sequence[Route] = ()) -> Starlette:
    """``further``: endpoints beside those of every server."""

    def model(name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": 0, "owned_by": "ianvs-specdec"}

    def guarded(answer: Callable[[Request], Response]) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            try:
                _authorize(request, service.key)
                return answer(request)
            except Refusal as refusal:
                return refused(refusal)

        return endpoint

    def one_model(request: Request) -> Response:
        check_model(name := request.path_params["name"], service.models)
        return JSONResponse(model(name))

    def all_models(request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [model(name) for name in service.models]})

    async def health(request: Request) -> Response:
        status = {"status": "stopping" if engine.draining else "ok"}
        emulated = engine.emulation()
        told = {} if emulated is None else {"emulated": dict(emulated)}
        return JSONResponse({**status, **told}, 503 if engine.draining else 200)

    async def show_metrics(request: Request) -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def no_such_page(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        message = f"{request.method} {request.url.path[:256]}: {error.detail}"
        return refused(Refusal(error.status_code, message, headers=error.headers))

    return Starlette(
        routes=[
            Route(CHAT, ChatEndpoint(service, engine, metrics), methods=["POST"]),
            Route("/v1/models", guarded(all_models)),
            Route("/v1/models/{name:path}", guarded(one_model)),
            Route("/health", health),
            Route("/metrics", show_metrics),
            *further,
        ],
        exception_handlers={HTTPException: no_such_page},
        middleware=[Middleware(_OneLength, metrics=metrics)],
    )


class _OneLength:
    """Refuses a request that tells its length in two ways, or in one that its version does not have: a proxy before
    this server may have read it otherwise, and what one takes for the next request, the other takes for the body.
    """

    def __init__(self, app: ASGIApp, metrics: Counts) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        names = [name for name, _ in scope.get("headers", ())]
        chunked = b"transfer-encoding" in names
        if not (chunked and (b"content-length" in names or scope["http_version"] == "1.0")):
            await self._app(scope, receive, send)
            return
        if scope["path"] == CHAT:
            self._metrics.outcome("rejected")
        message = "a request has either a Content-Length or, in HTTP/1.1, a Transfer-Encoding"
        await refused(Refusal(400, message, headers={"Connection": "close"}))(scope, receive, send)


def refused(refusal: Refusal) -> Response:
    return JSONResponse(refusal.body, refusal.status, headers=refusal.headers)


def _authorize(request: Request, key: str) -> None:
    given = request.headers.get("authorization", "")
    # Headers are bytes, which Starlette shows as Latin-1.
    if key and not hmac.compare_digest(given.encode("latin-1"), f"Bearer {key}".encode()):
        message = "this server wants its key in the header Authorization: Bearer KEY"
        raise Refusal(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


async def read_body(request: Request, service: Service) -> bytes:
    """The JSON text that a client with the right key sends. Raises Refusal."""
    _authorize(request, service.key)
    # A web page can make a browser send any other type here without asking.
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Refusal(415, "the body must be of Content-Type application/json")
    limit = service.max_body
    too_long = Refusal(413, f"the body is longer than {limit} bytes (--max-body)", code="body_too_long")
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > limit:
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
        raise Refusal(408, f"the body did not come within {BODY_SECONDS:g} s", code="body_too_slow") from None


class ChatEndpoint:
    """An ASGI application, since the status of a stream is known only when its first piece is there: a request that
    fails in the queue gets an HTTP status, not a stream with an error in it.
    """

    def __init__(self, service: Service, engine: Serving, metrics: Counts) -> None:
        self._service, self._engine, self._metrics = service, engine, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            chat = await self._read(Request(scope, receive))
            job = self._engine.submit(chat)
        except ClientDisconnect:
            self._metrics.outcome("disconnected")
            return
        except Refusal as refusal:
            self._metrics.outcome(refusal.outcome)
            await refused(refusal)(scope, receive, send)
            return
        await self._serve(job, receive, _Reply(Answer(chat), chat, send))

    async def _read(self, request: Request) -> ChatRequest:
        return parse(await read_body(request, self._service), self._service.models, self._service.defaults)

    async def _serve(self, job: Job, receive: Receive, reply: _Reply) -> None:
        """Pass on what happens to the job, its client's leaving and its deadline among it."""
        loop = asyncio.get_running_loop()
        watcher = asyncio.ensure_future(self._watch(job, receive))
        writer = asyncio.ensure_future(reply.write(job))
        deadline = self._service.deadline
        timers = [
            loop.call_later(deadline, self._engine.end, job, deadline_passed(deadline)),
            loop.call_later(deadline + STALLED_SECONDS, writer.cancel),
        ]
        try:
            # Cancelled: the client does not read its answer, or the server ends at once.
            with contextlib.suppress(asyncio.CancelledError):
                await writer
        finally:
            for timer in timers:
                timer.cancel()
            watcher.cancel()
            self._engine.end(job, DISCONNECTED)

    async def _watch(self, job: Job, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._engine.end(job, DISCONNECTED)


def _routed(routing: Mapping[str, Any] | None) -> dict[str, str]:
    """The headers that say which side answers and why."""
    told = {name: (routing or {}).get(name) for name in ("side", "score", "reason")}
    # A header has one line, of ASCII.
    shown = {name: " ".join(str(value).split()).encode("ascii", "replace").decode() for name, value in told.items()}
    return {f"x-specdec-{name}": shown[name] for name, value in told.items() if value is not None}


class _Reply:
    """The way of one answer to its client."""

    def __init__(self, answer: Answer, chat: ChatRequest, send: Send) -> None:
        self._answer, self._chat, self._send = answer, chat, send
        self._started = False

    async def write(self, job: Job) -> None:
        """Until the answer is whole or refused."""
        over = False
        while not over:
            data, happenings = b"", await job.events()
            self._answer.routing = job.routing
            for happened in happenings:
                if isinstance(happened, Refusal):
                    over = True
                    if happened is DISCONNECTED:
                        return
                    if not self._started and not data:
                        await self._whole(happened.status, happened.body, happened.headers)
                        return
                    data += event(happened.body)
                elif self._chat.stream:
                    data += b"" if self._started or data else self._answer.first()
                    if isinstance(happened, Completion):
                        over = True
                        data += self._answer.last(happened)
                    else:
                        data += self._answer.piece(happened)
                elif isinstance(happened, Completion):
                    await self._whole(200, self._answer.body(happened), {})
                    return
            if data:
                await self._stream(data, over)

    async def _whole(self, status: int, body: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        response = JSONResponse(body, status, headers={**headers, **_routed(self._answer.routing)})
        await self._send({"type": "http.response.start", "status": status, "headers": response.raw_headers})
        await self._send({"type": "http.response.body", "body": response.body})

    async def _stream(self, data: bytes, over: bool) -> None:
        if not self._started:
            self._started = True
            routed = [(name.encode(), text.encode()) for name, text in _routed(self._answer.routing).items()]
            start: Event = {"type": "http.response.start", "status": 200, "headers": [*STREAM_HEADERS, *routed]}
            await self._send(start)
        await self._send({"type": "http.response.body", "body": data, "more_body": not over})
