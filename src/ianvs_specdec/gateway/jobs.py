"""Requests behind the router, and their form as rows for routers."""

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
from ianvs_specdec.serving.protocol import RequestError
from ianvs_specdec.serving.requests import ChatRequest

CANCELLED = ("disconnected", "shutdown")
"""Outcomes that are not failures of a side."""


class SideJob(Job):
    """The work of one side on a request. ``on_event`` gets its events, on the event loop."""

    def __init__(self, chat: ChatRequest, side: str, on_event: Callable[[SideJob, Event], None]) -> None:
        super().__init__(chat)
        self.side, self._on_event = side, on_event
        self.pieces: list[tuple[str, int]] = []
        """Pieces of text, each with the number of tokens so far."""
        self.outcome: Completion | RequestError | None = None

    def emit(self, event: Event) -> None:
        self._on_event(self, event)


class RoutedJob(Job):
    """``chats``: the request of each side, with its default parameters; ``selected``: the job whose answer goes to the
    client; ``edge``: the job that the router requested, with its result in ``answered``."""

    def __init__(
        self, chat: ChatRequest, chats: Mapping[str, ChatRequest], slo: Mapping[str, float], full: bool
    ) -> None:
        super().__init__(chat)
        self.chats, self.row, self.loop = chats, ChatRow(self, slo, full), asyncio.get_running_loop()
        self.selected: SideJob | None = None
        self.edge: SideJob | None = None
        self.answered: Future[Completion | RequestError] = Future()
        self.timer: asyncio.TimerHandle | None = None
        self.begun = self.fell_back = False
        self.learn: Callable[[str, float], None] | None = None
        """Gives the router feedback: the side and its score."""

    @property
    def edge_failed(self) -> bool:
        return self.edge is not None and isinstance(self.edge.outcome, RequestError)


class ChatRow(Row):
    """A chat as a row of a dataset. ``full``: see ``query_of_chat``."""

    def __init__(self, job: RoutedJob, slo: Mapping[str, float], full: bool) -> None:
        self.job, self.parsed = job, query_of_chat(job.chat, full=full)
        super().__init__(query=self.parsed.to_json(), **({"slo": slo} if slo else {}))


def query_of_chat(chat: ChatRequest, *, full: bool = False) -> Query:
    """The user's messages are the turns, the assistant's messages their predictions.

    ``full``: the last prediction also has all other texts of the client that the model receives.
    """
    turns: list[str] = []
    predictions: list[str] = []
    system: list[str] = []
    for message in chat.messages:
        if message["role"] == "user":
            turns.append(message["content"])
            predictions.append("")
        elif message["role"] == "assistant" and predictions:
            predictions[-1] += message["content"]
        else:
            system.append(message["content"])
    turns, predictions = turns or [""], predictions or [""]
    predictions[-1] += chat.hints.prediction
    if full:
        more = _texts([chat.params.get(name) for name in ("stop", "chat_template_kwargs")])
        predictions[-1] = "\n".join([predictions[-1], *more])
    # As in benchmarks: a question with options is a multiple choice.
    scorer = "choice" if options_of(turns[-1]) else "text"
    prediction = tuple(predictions) if any(predictions) else ()
    return Query(tuple(turns), chat.id, scorer=scorer, system="\n\n".join(system), prediction=prediction)


def _texts(value: Any) -> Iterator[str]:
    """All strings and numbers in a JSON value, including keys."""
    if isinstance(value, list | dict):
        for one in [*value, *value.values()] if isinstance(value, dict) else value:
            yield from _texts(one)
    elif value is not None:
        yield str(value)


def response_to(row: ChatRow, event: Completion | RequestError, name: str, side: Side) -> Response:
    """The response of a side as in a test case, with an ``error`` if it failed."""
    about: dict[str, Any] = {"side": name, "model": side.settings.general.model, "backend": side.backend}
    if isinstance(event, Completion):
        turn = turn_of(event, replayed=False, cached=False)
        response = response_of(row.parsed, [event], [turn], **about, cost=side.cost(event))
    else:
        response = response_of(row.parsed, [], [], **about, cost=None)
        if event.outcome not in CANCELLED:
            response["error"], response["failures"] = str(event), ()
    response.row = row
    return response
