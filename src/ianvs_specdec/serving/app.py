"""The endpoints: ``/v1/chat/completions``, ``/v1/completions``, ``/v1/models``, ``/health``, ``/metrics``."""

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
from starlette.types import Message as Event

from ianvs_specdec.common.types import Completion, Sampling
from ianvs_specdec.serving.answers import Answer, TextAnswer
from ianvs_specdec.serving.engine import DISCONNECTED, Choices, EngineClient, deadline_passed
from ianvs_specdec.serving.metrics import Counts
from ianvs_specdec.serving.protocol import Refusal, check_model, event
from ianvs_specdec.serving.requests import ChatRequest, parse, parse_completion

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
BODY_SECONDS = 60.0
"""How long a client may take to send its request."""
STALLED_SECONDS = 30.0
"""How long beyond the deadline a client may take to read its answer."""
THIS_MACHINE = re.compile(r"(localhost|127(\.\d+){3}|\[::1])(:\d+)?", re.IGNORECASE)
"""A Host."""
LONGEST_HEADER = 200
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
    this_machine: bool = False
    """Whether a request must be for an address of this machine: without a key, a web page whose name was pointed here
    (DNS rebinding) could ask as well."""
    window: int | None = None
    """Tokens of the model's context."""


def create_app(service: Service, engine: EngineClient, metrics: Counts, further: Sequence[Route] = ()) -> Starlette:
    """``further``: endpoints beside those of every server."""
    window = {} if service.window is None else {"max_model_len": service.window}

    def model(name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": 0, "owned_by": "ianvs-specdec", **window}

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
            Route(COMPLETIONS, ChatEndpoint(service, engine, metrics, parse_completion, TextAnswer), methods=["POST"]),
            Route("/v1/models", guarded(all_models)),
            Route("/v1/models/{name:path}", guarded(one_model)),
            Route("/health", health),
            Route("/metrics", show_metrics),
            *further,
        ],
        exception_handlers={HTTPException: no_such_page},
        middleware=[Middleware(_Door, this_machine=service.this_machine, metrics=metrics)],
    )


class _Door:
    """Refuses a request that tells its length in two ways, or in one that its version does not have: a proxy before
    this server may have read it otherwise, and what one takes for the next request, the other takes for the body.
    See ``Service`` for ``this_machine``.
    """

    def __init__(self, app: ASGIApp, this_machine: bool, metrics: Counts) -> None:
        self._app, self._this_machine, self._metrics = app, this_machine, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(Request(scope)) if scope["type"] == "http" else None
        if refusal is None:
            await self._app(scope, receive, send)
            return
        if scope["path"] in (CHAT, COMPLETIONS):
            self._metrics.outcome("rejected")
        await refused(refusal)(scope, receive, send)

    def _refusal(self, request: Request) -> Refusal | None:
        headers, scope = request.headers, request.scope
        old = scope["http_version"] == "1.0"
        if "transfer-encoding" in headers and ("content-length" in headers or old):
            message = "a request has either a Content-Length or, in HTTP/1.1, a Transfer-Encoding"
            return Refusal(400, message, headers={"Connection": "close"})
        host = headers.get("host", "localhost" if old else "")
        foreign = headers.get("origin", own := f"{scope['scheme']}://{host}") != own
        if self._this_machine and (foreign or not THIS_MACHINE.fullmatch(host)):
            message = "without a key (--api-key-env), this server is for localhost, 127.x.x.x and [::1] only"
            return Refusal(403, message, code="foreign_host")
        return None


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
    fails in the queue gets an HTTP status, not a stream with an error in it. ``parse`` reads a body, ``answer`` is the
    form of an answer.
    """

    def __init__(
        self,
        service: Service,
        engine: EngineClient,
        metrics: Counts,
        parse: Callable[[bytes, Sequence[str], Sampling], ChatRequest] = parse,
        answer: type[Answer] = Answer,
    ) -> None:
        self._service, self._engine, self._metrics = service, engine, metrics
        self._parse, self._answer = parse, answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            chat = await self._read(Request(scope, receive))
            choices = Choices(self._engine, chat)
        except ClientDisconnect:
            self._metrics.outcome("disconnected")
            return
        except Refusal as refusal:
            self._metrics.outcome(refusal.outcome)
            await refused(refusal)(scope, receive, send)
            return
        await self._serve(choices, receive, _Reply(self._answer(chat), chat, send))

    async def _read(self, request: Request) -> ChatRequest:
        return self._parse(await read_body(request, self._service), self._service.models, self._service.defaults)

    async def _serve(self, choices: Choices, receive: Receive, reply: _Reply) -> None:
        """Pass on what happens to the jobs, their client's leaving and their deadline among it."""
        loop = asyncio.get_running_loop()
        watcher = asyncio.ensure_future(self._watch(choices, receive))
        writer = asyncio.ensure_future(reply.write(choices))
        deadline = self._service.deadline
        timers = [
            loop.call_later(deadline, choices.end, deadline_passed(deadline)),
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
            choices.end(DISCONNECTED)

    async def _watch(self, choices: Choices, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        choices.end(DISCONNECTED)


def _routed(routing: Mapping[str, Any] | None) -> dict[str, str]:
    """The headers that say which side answers and why."""
    told = {name: (routing or {}).get(name) for name in ("side", "score", "reason")}
    # A header has one line, of printable ASCII.
    shown = {name: re.sub("[^ -~]+", " ", str(value)) for name, value in told.items() if value is not None}
    return {f"x-specdec-{name}": value[:LONGEST_HEADER].strip() for name, value in shown.items()}


class _Reply:
    """The way of one answer to its client."""

    def __init__(self, answer: Answer, chat: ChatRequest, send: Send) -> None:
        self._answer, self._chat, self._send = answer, chat, send
        self._started = False
        self._begun: set[int] = set()
        self._done: dict[int, Completion] = {}

    async def write(self, choices: Choices) -> None:
        """Until the answer is whole or refused."""
        while len(self._done) < len(choices.jobs):
            data, events = b"", await choices.events()
            self._answer.routing = choices.routing
            for index, happened in events:
                if isinstance(happened, Refusal):
                    choices.end(happened)
                    if happened is not DISCONNECTED:
                        await self._refuse(happened, data)
                    return
                if isinstance(happened, Completion):
                    self._done[index] = happened
                if self._chat.stream:
                    data += self._event(index, happened)
            completions = [self._done[index] for index in sorted(self._done)]
            over = len(completions) == len(choices.jobs)
            if over and not self._chat.stream:
                await self._whole(200, self._answer.body(completions), {})
            elif data:
                await self._stream(data + (self._answer.end(completions) if over else b""), over=over)

    def _event(self, index: int, happened: str | Completion) -> bytes:
        data = b"" if index in self._begun else self._answer.first(index)
        self._begun.add(index)
        if isinstance(happened, Completion):
            return data + self._answer.last(index, happened)
        return data + self._answer.piece(index, happened)

    async def _refuse(self, refusal: Refusal, data: bytes) -> None:
        """In place of what is missing, behind the ``data`` that is there."""
        if self._started or data:
            await self._stream(data + event(refusal.body), over=True)
        else:
            await self._whole(refusal.status, refusal.body, refusal.headers)

    async def _whole(self, status: int, body: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        response = JSONResponse(body, status, headers={**headers, **_routed(self._answer.routing)})
        await self._send({"type": "http.response.start", "status": status, "headers": response.raw_headers})
        await self._send({"type": "http.response.body", "body": response.body})

    async def _stream(self, data: bytes, *, over: bool) -> None:
        if not self._started:
            self._started = True
            routed = [(name.encode(), text.encode()) for name, text in _routed(self._answer.routing).items()]
            start: Event = {"type": "http.response.start", "status": 200, "headers": [*STREAM_HEADERS, *routed]}
            await self._send(start)
        await self._send({"type": "http.response.body", "body": data, "more_body": not over})
