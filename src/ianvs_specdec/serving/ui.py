"""``/ui``: a page with requests as they come, and the accepted drafts in their answers.

An open page gets what has changed as server-sent events, ten times a second; one that reads slowly makes nothing grow.
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
from ianvs_specdec.serving.protocol import Refusal
from ianvs_specdec.serving.requests import ChatRequest

ROWS, QUESTION, ANSWER, PIECE = 200, 500, 20_000, 8
"""Requests that are kept, and of each the characters of question and answer, where a piece counts as 8 more."""
PAUSE_SECONDS = 0.1
STALLED_SECONDS = 10.0
"""How long a page may take to read an event; then it is disconnected."""


@dataclass(eq=False)
class _Row:
    """A request: ``about`` it, as the page gets it, and the ``pieces`` of its answer with their numbers of tokens."""

    about: dict[str, Any]
    pieces: list[tuple[str, int]] = field(default_factory=list)
    side: str | None = None
    changes: int = 1

    def answered_by(self, side: str | None) -> None:
        """What the other side said before it failed is not the answer."""
        if side != self.side:
            self.side, self.pieces = side, []
            self.about |= {"room": ANSWER, "tokens": 0, "first": None}

    def add(self, text: str, tokens: int) -> None:
        if not text and not tokens:
            return
        self.about["room"] -= len(text) + PIECE
        if self.about["room"] >= 0:
            self.pieces.append((text, tokens))

    def complete(self, completion: Completion) -> None:
        """The engine has counted: the steps are the answer's last tokens, of each step its accepted drafts first."""
        tokens, steps = completion.completion_tokens, completion.trace.steps
        if not self.pieces:
            self.add(completion.text[: ANSWER - PIECE], tokens)
        emitted = sum(step.emitted for step in steps)
        marks = [0] * (tokens - emitted)
        for step in steps:
            marks += [1] * step.accepted + [0] * (step.emitted - step.accepted)
        drafted, accepted = completion.trace.drafts or (sum(step.drafted for step in steps), sum(marks))
        self.about |= {"end": completion.finish_reason, "tokens": tokens, "steps": len(steps), "emitted": emitted}
        each = iter(marks)
        accepted_in = [sum(itertools.islice(each, count)) for _, count in self.pieces]
        self.about |= {"drafted": drafted, "accepted": accepted, "accepted_in": accepted_in}


class Feed:
    """What happens to the requests of an engine; an ASGI application: the stream of events. All of it happens on the
    event loop.
    """

    def __init__(self, engine: EngineClient) -> None:
        self._engine, self._submit = engine, engine.submit
        engine.submit = self._follow  # type: ignore[method-assign]
        self._rows = deque[_Row](maxlen=ROWS)
        self._numbers = itertools.count()

    def _follow(self, chat: ChatRequest) -> Job:
        about = {"id": next(self._numbers), "time": time.time(), "model": chat.model, "room": ANSWER}
        asked = chat.prompts[0] if chat.prompts else chat.messages[-1]["content"]
        # A raw prompt may be token ids.
        row = _Row({**about, "question": (asked if isinstance(asked, str) else str(asked))[:QUESTION]})
        self._rows.append(row)
        try:
            job = self._submit(chat)
        except Refusal as refusal:
            row.about |= {"end": refusal.outcome, "error": str(refusal)}
            raise
        job.listener = partial(self._happened, row, job)
        return job

    def _happened(self, row: _Row, job: Job, event: Event) -> None:
        row.changes += 1
        row.answered_by((job.routing or {}).get("side"))
        row.about |= {"latency": time.perf_counter() - job.arrived, "routing": job.routing}
        if isinstance(event, str):
            row.about["first"] = row.about.get("first") or row.about["latency"]
            row.add(event, job.tokens - row.about.get("tokens", 0))
            row.about["tokens"] = job.tokens
            return
        # What is kept of a request does not hold its chat.
        job.listener = None
        if isinstance(event, Completion):
            row.complete(event)
        else:
            row.about |= {"end": event.outcome, "error": str(event)}

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
                    yield _event({**row.about, "at": at, "pieces": row.pieces[at:]})
            await asyncio.sleep(PAUSE_SECONDS)


def _event(data: Mapping[str, Any]) -> str:
    # JSON has no word for a score that is not a number.
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
