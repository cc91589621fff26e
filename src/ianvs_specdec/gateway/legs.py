"""A request behind the router, and the work of a side on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from ianvs_specdec.benchmarks.letters import options_of
from ianvs_specdec.benchmarks.rows import Row
from ianvs_specdec.common.types import Completion, Query
from ianvs_specdec.serving.engine import Event, Job
from ianvs_specdec.serving.protocol import ChatRequest


class Leg(Job):
    """What a side does for a request. What happens to it is heard by ``hear``, on the event loop."""

    def __init__(self, chat: ChatRequest, side: str, hear: Callable[[Leg, Event], None]) -> None:
        super().__init__(chat)
        self.side, self._hear = side, hear
        self.pieces: list[str] = []
        self.completion: Completion | None = None

    def tell(self, event: Event) -> None:
        self._hear(self, event)


class RoutedJob(Job):
    """``chats``: what each side is asked, with its own settings in place of what the request leaves out; ``leg``: the
    one whose answer goes to the client; ``edge``: that whose answer the router has asked for."""

    def __init__(self, chat: ChatRequest, chats: Mapping[str, ChatRequest], slo: Mapping[str, float]) -> None:
        super().__init__(chat)
        self.chats, self.row = chats, ChatRow(self, slo)
        self.leg: Leg | None = None
        self.edge: Leg | None = None
        self.loop = asyncio.get_running_loop()
        self.began = False
        self.timer: asyncio.TimerHandle | None = None


class ChatRow(Row):
    """A chat as a dataset processor would have made a row of it."""

    def __init__(self, job: RoutedJob, slo: Mapping[str, float]) -> None:
        self.job, self.parsed = job, query_of_chat(job.chat)
        super().__init__(query=self.parsed.to_json(), **({"slo": slo} if slo else {}))


def query_of_chat(chat: ChatRequest) -> Query:
    """The user's messages are the turns. What the assistant said to one is what is expected there."""
    turns: list[str] = []
    said: list[str] = []
    system: list[str] = []
    for message in chat.messages:
        role, text = message["role"], message["content"]
        if role == "user":
            turns.append(text)
            said.append("")
        elif role == "assistant" and said:
            said[-1] += text
        else:
            system.append(text)
    turns, said = turns or [""], said or [""]
    said[-1] = said[-1] or chat.hints.prediction
    # As the rows of benchmarks have it: where options are shown, one of them is the answer.
    scorer = "choice" if options_of(turns[-1]) else "text"
    prediction = tuple(said) if any(said) else ()
    return Query(tuple(turns), chat.id, scorer=scorer, system="\n\n".join(system), prediction=prediction)


def routing_of(row: Mapping[str, Any], router: Any, hard: bool) -> dict[str, Any]:
    """The decision as ``serving.engine.Job`` has it, without the side."""
    record = row.get("routing") or {"router": type(router).__name__, "hard": hard}
    return {name: record[name] for name in ("router", "score", "hard", "seconds", "reason") if name in record}
