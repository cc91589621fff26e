"""One request with several choices: each is a job of its own, and their events come together."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from ianvs_specdec.serving.engine import Event, Inbox, Job, Serving
from ianvs_specdec.serving.refusal import Refusal
from ianvs_specdec.serving.requests import ChatRequest


class Choices:
    """The jobs of a request's choices. Raises Refusal where one of them is refused; those before it are given up."""

    def __init__(self, engine: Serving, chat: ChatRequest) -> None:
        self._engine = engine
        self.jobs: list[Job] = []
        self._events: Inbox = asyncio.Queue()
        try:
            for number, one in enumerate(chat.choices()):
                job = engine.submit(one)
                job.number, job.inbox = number, self._events
                self.jobs.append(job)
        except Refusal as refusal:
            self.end(refusal)
            raise

    def end(self, refusal: Refusal) -> None:
        for job in self.jobs:
            self._engine.end(job, refusal)

    @property
    def routing(self) -> Mapping[str, Any] | None:
        """The first's, with the cost of all once it is known."""
        routings = [dict(job.routing or {}) for job in self.jobs]
        costs = [routing.pop("cost", None) for routing in routings]
        total = {} if None in costs else {"cost": sum(costs)}
        return {**routings[0], **total} or None

    async def events(self) -> list[tuple[int, Event]]:
        """What has happened since the last call, at least one event, each with the index of its choice."""
        events = [await self._events.get()]
        while not self._events.empty():
            events.append(self._events.get_nowait())
        return events
