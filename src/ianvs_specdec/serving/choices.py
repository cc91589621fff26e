"""One request with several choices: each is a job of its own, and their events come together."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from ianvs_specdec.serving.engine import Event, Job, Serving
from ianvs_specdec.serving.refusal import Refusal
from ianvs_specdec.serving.requests import ChatRequest


class Choices:
    """The jobs of a request's choices. Raises Refusal where one of them is refused; then none is worked on."""

    def __init__(self, engine: Serving, chat: ChatRequest) -> None:
        self._engine = engine
        self.jobs: list[Job] = []
        try:
            for one in chat.choices():
                self.jobs.append(engine.submit(one))
        except Refusal as refusal:
            self.end(refusal)
            raise
        self._reading: dict[asyncio.Task[list[Event]], int] = {}

    def end(self, refusal: Refusal) -> None:
        for job in self.jobs:
            self._engine.end(job, refusal)

    @property
    def routing(self) -> Mapping[str, Any] | None:
        return self.jobs[0].routing

    async def events(self) -> list[tuple[int, Event]]:
        """What has happened since the last call, at least one event, each with the index of its choice."""
        if len(self.jobs) == 1:
            return [(0, happened) for happened in await self.jobs[0].events()]
        if not self._reading:
            for index in range(len(self.jobs)):
                self._read(index)
        done, _ = await asyncio.wait(self._reading, return_when=asyncio.FIRST_COMPLETED)
        events = []
        for task in done:
            index = self._reading.pop(task)
            events += [(index, happened) for happened in task.result()]
            if isinstance(events[-1][1], str):
                self._read(index)
        return events

    def _read(self, index: int) -> None:
        self._reading[asyncio.ensure_future(self.jobs[index].events())] = index

    def close(self) -> None:
        for task in self._reading:
            task.cancel()
