"""The edge model as routers ask it (see ``plugin.edge_first``), and answers as they are told of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from ianvs_specdec.benchmarks.rows import query_of_row
from ianvs_specdec.common.errors import AbandonedError
from ianvs_specdec.common.types import Completion
from ianvs_specdec.gateway.case import Side
from ianvs_specdec.gateway.legs import Leg, RoutedJob
from ianvs_specdec.plugin.edge_first import Check, Read
from ianvs_specdec.plugin.requests import EarlyExit
from ianvs_specdec.plugin.response import response_of, turn_of
from ianvs_specdec.records.response import Response
from ianvs_specdec.serving.engine import Event
from ianvs_specdec.serving.refusal import Refusal

PATIENCE = 1.0
"""Seconds between two looks at whether a request is still wanted."""
ABANDONED = ("disconnected", "shutdown")
"""Outcomes that say nothing about a side."""


def response_to(row: Any, event: Event, side: Side, name: str) -> Response:
    """What a side made of a row, with an ``error`` where it failed."""
    query = query_of_row(row)
    about: dict[str, Any] = {"side": name, "model": side.settings.own.model, "backend": side.backend}
    if isinstance(event, Completion):
        usage = event.prompt_tokens, event.completion_tokens, event.cached_tokens
        turn = turn_of(event, replayed=False, cached=False)
        response = response_of(query, [event], [turn], **about, cost=side.settings.cost(*usage))
    else:
        response = response_of(query, [], [], **about, cost=None)
        if isinstance(event, Refusal) and event.outcome not in ABANDONED:
            response["error"], response["failures"] = str(event), ()
    response.row = row
    return response


class AskedEdge:
    """``ask`` has the engine work on a leg; ``ended`` is told of its end; both on the event loop."""

    def __init__(
        self,
        side: Side,
        ask: Callable[[RoutedJob, Leg], None],
        ended: Callable[[RoutedJob, Leg, Event], None],
    ) -> None:
        self._side, self._ask, self._ended = side, ask, ended

    def answer(self, data: Any, *, early: EarlyExit | None) -> Response:
        """In a router's thread. An edge that fails leaves an ``error``, as in a test case."""
        job, ended = data.job, Future[Event]()

        def hear(leg: Leg, event: Event) -> None:
            if isinstance(event, str):
                leg.pieces.append(event)
                return
            leg.completion = event if isinstance(event, Completion) else None
            self._ended(job, leg, event)
            ended.set_result(event)

        def ask() -> None:
            try:
                self._ask(job, Leg(job.chats["edge"], "edge", hear))
            except Refusal as refusal:
                ended.set_result(refusal)

        job.loop.call_soon_threadsafe(ask)
        while not job.over:
            # A server that stops leaves calls undone.
            with contextlib.suppress(TimeoutError):
                return response_to(data, ended.result(PATIENCE), self._side, "edge")
        raise AbandonedError

    def encode(self, data: Any, layers: Sequence[int], check: Check) -> Read | None:
        raise NotImplementedError

    def backend(self) -> str:
        return self._side.backend
