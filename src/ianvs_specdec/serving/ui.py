"""``/ui``: a page that shows current requests, and the accepted drafts in their answers.

The page receives changes as server-sent events, ten times a second. Slow readers do not use more memory.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import itertools
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import resources
from typing import Any
from weakref import WeakKeyDictionary

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from ianvs_specdec.common.types import Completion
from ianvs_specdec.serving.engine import EngineClient, Event, Job
from ianvs_specdec.serving.protocol import RequestError
from ianvs_specdec.serving.requests import ChatRequest

ROWS, QUESTION, ANSWER, PIECE = 200, 500, 20_000, 8
"""Number of requests kept; characters of a question, of an answer, and overhead of each of its pieces."""
PAUSE_SECONDS = 0.1
STALLED_SECONDS = 10.0
"""Timeout for reading an event."""


@dataclass(eq=False)
class _Row:
    """A request: its fields on the page, and the ``pieces`` of its answer with their token counts."""

    fields: dict[str, Any]
    pieces: list[tuple[str, int]] = field(default_factory=list)
    side: str | None = None
    changes: int = 1

    def set_side(self, side: str | None) -> None:
        """Discard the answer of the other side, which has failed."""
        if side != self.side:
            self.side, self.pieces = side, []
            self.fields |= {"room": ANSWER, "tokens": 0, "first": None}

    def add(self, text: str, tokens: int) -> None:
        if not text and not tokens:
            return
        self.fields["room"] -= len(text) + PIECE
        if self.fields["room"] >= 0:
            self.pieces.append((text, tokens))

    def complete(self, completion: Completion) -> None:
        """Mark accepted drafts: steps are the last tokens of an answer, and each begins with its accepted drafts."""
        tokens, steps = completion.completion_tokens, completion.trace.steps
        if not self.pieces:
            self.add(completion.text[: ANSWER - PIECE], tokens)
        emitted = sum(step.emitted for step in steps)
        marks = [0] * (tokens - emitted)
        for step in steps:
            marks += [1] * step.accepted + [0] * (step.emitted - step.accepted)
        drafted, accepted = completion.trace.drafts or (sum(step.drafted for step in steps), sum(marks))
        self.fields |= {"end": completion.finish_reason, "tokens": tokens, "steps": len(steps), "emitted": emitted}
        each = iter(marks)
        accepted_in = [sum(itertools.islice(each, count)) for _, count in self.pieces]
        self.fields |= {"drafted": drafted, "accepted": accepted, "accepted_in": accepted_in}


class Feed:
    """Follows the requests of an engine, on the event loop. As an ASGI application: the stream of events."""

    def __init__(self, engine: EngineClient) -> None:
        self._engine, self._submit = engine, engine.submit
        engine.submit = self._submit_and_follow  # type: ignore[method-assign]
        self._rows = deque[_Row](maxlen=ROWS)
        self._numbers = itertools.count()

    def _submit_and_follow(self, chat: ChatRequest) -> Job:
        fields = {"id": next(self._numbers), "time": time.time(), "model": chat.model, "room": ANSWER}
        # A prompt may be token ids.
        question = str(chat.prompts[0] if chat.prompts else chat.messages[-1]["content"])
        row = _Row({**fields, "question": question[:QUESTION]})
        self._rows.append(row)
        try:
            job = self._submit(chat)
        except RequestError as error:
            row.fields |= {"end": error.outcome, "error": str(error)}
            raise
        job.listener = partial(self._update, row, job)
        return job

    def _update(self, row: _Row, job: Job, event: Event) -> None:
        row.changes += 1
        row.set_side((job.routing or {}).get("side"))
        row.fields |= {"latency": time.perf_counter() - job.arrived, "routing": job.routing}
        if isinstance(event, str):
            row.fields["first"] = row.fields.get("first") or row.fields["latency"]
            row.add(event, job.tokens - row.fields.get("tokens", 0))
            row.fields["tokens"] = job.tokens
            return
        # So that the row does not keep the chat alive.
        job.listener = None
        if isinstance(event, Completion):
            row.complete(event)
        else:
            row.fields |= {"end": event.outcome, "error": str(event)}

    def routes(self) -> list[Route]:
        return [Route("/ui", _page), Route("/ui/events", self, methods=["GET"])]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            await asyncio.wait_for(send(message), STALLED_SECONDS)

        stream = StreamingResponse(self._changes(), headers=HEADERS, media_type="text/event-stream")
        with contextlib.suppress(TimeoutError):
            await stream(scope, receive, send_in_time)

    async def _changes(self) -> AsyncIterator[str]:
        yield _event({"rows": ROWS, "emulated": self._engine.emulation()})
        sent = WeakKeyDictionary[_Row, tuple[int, list[tuple[str, int]], int]]()
        while not self._engine.draining:
            for row in list(self._rows):
                changes, pieces, at = sent.get(row, (0, row.pieces, 0))
                if changes < row.changes:
                    at = at if pieces is row.pieces else 0
                    sent[row] = row.changes, row.pieces, len(row.pieces)
                    yield _event({**row.fields, "at": at, "pieces": row.pieces[at:]})
            await asyncio.sleep(PAUSE_SECONDS)


def _event(data: Mapping[str, Any]) -> str:
    # A score may be NaN, which JSON does not have.
    finite = json.loads(json.dumps(data, default=dict), parse_constant=lambda _: None)
    return f"data: {json.dumps(finite)}\n\n"


async def _page(request: Request) -> Response:
    return Response(PAGE, media_type="text/html", headers=HEADERS)


def _digest(tag: str) -> str:
    text = PAGE.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


PAGE = resources.files(__package__).joinpath("ui.html").read_text(encoding="utf-8")
HEADERS = {
    "Content-Security-Policy": f"default-src 'none'; script-src {_digest('script')}; style-src {_digest('style')}; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
}
