"""A request behind the router, the work of a side on it, and both as routers see them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any

from ianvs_specdec.benchmarks.extraction import options_of
from ianvs_specdec.benchmarks.rows import Row
from ianvs_specdec.common.types import Completion, Query
from ianvs_specdec.gateway.case import Side
from ianvs_specdec.plugin.response import response_of, turn_of
from ianvs_specdec.records.response import Response
from ianvs_specdec.serving.engine import Event, Job
from ianvs_specdec.serving.refusal import Refusal
from ianvs_specdec.serving.requests import ChatRequest

ABANDONED = ("disconnected", "shutdown")
"""Outcomes that say nothing about a side."""


class Leg(Job):
    """What a side does for a request. ``hear`` is called with each event, on the event loop."""

    def __init__(self, chat: ChatRequest, side: str, hear: Callable[[Leg, Event], None]) -> None:
        super().__init__(chat)
        self.side, self._hear = side, hear
        self.pieces: list[tuple[str, int]] = []
        """Each with the number of tokens up to its end."""
        self.outcome: Completion | Refusal | None = None

    def tell(self, event: Event) -> None:
        self._hear(self, event)


class RoutedJob(Job):
    """``chats``: what each side is asked, with its own settings for what the request leaves out; ``leg``: the one whose
    answer goes to the client; ``edge``: the one whose answer the router has asked for, ``answered`` what it is."""

    def __init__(self, chat: ChatRequest, chats: Mapping[str, ChatRequest], row: Mapping[str, Any]) -> None:
        super().__init__(chat)
        self.chats, self.row, self.loop = chats, ChatRow(self, **row), asyncio.get_running_loop()
        self.leg: Leg | None = None
        self.edge: Leg | None = None
        self.answered: Future[Completion | Refusal] = Future()
        self.timer: asyncio.TimerHandle | None = None
        self.begun = self.fell_back = False
        self.lesson: Callable[[str, float], None] | None = None

    @property
    def edge_failed(self) -> bool:
        return self.edge is not None and isinstance(self.edge.outcome, Refusal)


class ChatRow(Row):
    """A chat as a dataset processor would have made a row of it. ``whole``: see ``query_of_chat``."""

    def __init__(self, job: RoutedJob, slo: Mapping[str, float], whole: bool) -> None:
        self.job, self.parsed = job, query_of_chat(job.chat, whole=whole)
        super().__init__(query=self.parsed.to_json(), **({"slo": slo} if slo else {}))


def query_of_chat(chat: ChatRequest, *, whole: bool = False) -> Query:
    """The user's messages are the turns; what the assistant said to one is what is expected there, and so is, of a
    ``whole`` query, all else of the client's that a model is given."""
    turns: list[str] = []
    said: list[str] = []
    system: list[str] = []
    for message in chat.messages:
        if message["role"] == "user":
            turns.append(message["content"])
            said.append("")
        elif message["role"] == "assistant" and said:
            said[-1] += message["content"]
        else:
            system.append(message["content"])
    turns, said = turns or [""], said or [""]
    said[-1] += chat.hints.prediction
    if whole:
        said[-1] = "\n".join([said[-1], *_texts([chat.given.get(name) for name in ("stop", "chat_template_kwargs")])])
    # As the rows of benchmarks have it: where options are shown, one of them is the answer.
    scorer = "choice" if options_of(turns[-1]) else "text"
    prediction = tuple(said) if any(said) else ()
    return Query(tuple(turns), chat.id, scorer=scorer, system="\n\n".join(system), prediction=prediction)


def _texts(value: Any) -> Iterator[str]:
    """The texts and numbers in what a client gives, names among them."""
    if isinstance(value, list | dict):
        for one in [*value, *value.values()] if isinstance(value, dict) else value:
            yield from _texts(one)
    elif value is not None:
        yield str(value)


def response_to(row: ChatRow, event: Completion | Refusal, name: str, side: Side) -> Response:
    """What a side made of a row, with an ``error`` where it failed."""
    about: dict[str, Any] = {"side": name, "model": side.settings.own.model, "backend": side.backend}
    if isinstance(event, Completion):
        turn = turn_of(event, replayed=False, cached=False)
        response = response_of(row.parsed, [event], [turn], **about, cost=side.cost(event))
    else:
        response = response_of(row.parsed, [], [], **about, cost=None)
        if event.outcome not in ABANDONED:
            response["error"], response["failures"] = str(event), ()
    response.row = row
    return response
