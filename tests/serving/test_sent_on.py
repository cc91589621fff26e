"""When what decoding threads put out is sent on to clients."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from ianvs_specdec.common.types import Completion, Sampling
from ianvs_specdec.serving.engine import Engine
from ianvs_specdec.serving.metrics import Metrics
from ianvs_specdec.serving.requests import parse, parse_completion
from tests.support.instant import Instant


class Gathering(Instant):
    """Says after two chunks that they are to be sent on, and puts out a third before it ends."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.seen = list[list[str]]()
        self.job: Any = None

    def on_compute_start(self, call: Callable[[], None]) -> bool:
        self._call = call
        return True

    def generate(self, messages: Any, sampling: Any, on_chunk: Any = None, hints: Any = None) -> Completion:
        for chunk in ("a", "b"):
            on_chunk(chunk, 1)
            self.look()
        self._call()
        self.look()
        on_chunk("c", 1)
        self.look()
        return super().generate(messages, sampling, on_chunk, hints)

    def look(self) -> None:
        """What has come by now, where the loop had time."""
        told = asyncio.run_coroutine_threadsafe(self.came(), self.loop).result(60)
        self.seen.append(told)

    async def came(self) -> list[str]:
        return [piece for _, piece in self.job.inbox._queue if isinstance(piece, str)]


def test_chunks_are_sent_on_when_the_back_end_says_so_and_at_the_end() -> None:
    async def run() -> tuple[list[list[str]], list[object]]:
        llm = Gathering("m")
        llm.loop = asyncio.get_running_loop()
        engine = Engine(llm, 0, 1, Metrics("m", "instant"))
        asked = parse(b'{"model": "m", "messages": [{"role": "user", "content": "x"}]}', ("m",), Sampling())
        llm.job = job = engine.submit(asked)
        while not job.over:
            await asyncio.sleep(0.01)
        events: list[object] = [job.inbox.get_nowait()[1] for _ in range(job.inbox.qsize())]
        engine.close()
        return llm.seen, events

    seen, events = asyncio.run(run())
    assert seen == [[], [], ["a", "b"], ["a", "b"]]
    assert [*map(type, events)] == [str, str, str, Completion]


def test_what_a_server_behind_cannot_do_is_the_clients_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> Any:
        monkeypatch.setattr(Instant, "local", False)
        engine = Engine(Instant("m"), 0, 1, Metrics("m", "instant"))
        job = engine.submit(parse_completion(b'{"model": "m", "prompt": "x"}', ("m",), Sampling()))
        _, happened = await asyncio.wait_for(job.inbox.get(), 60)
        engine.close()
        return happened

    assert asyncio.run(run()).status == 400


def test_an_answer_comes_even_if_it_cannot_be_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def counted(metrics: Metrics, completion: Completion, waited: float) -> None:
        raise ValueError("counters can only go up")

    monkeypatch.setattr(Metrics, "completed", counted)
    failed = list[object]()

    async def run() -> list[object]:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context["exception"]))
        engine = Engine(Instant("m"), 0, 1, Metrics("m", "instant"))
        job = engine.submit(
            parse(b'{"model": "m", "messages": [{"role": "user", "content": "x"}]}', ("m",), Sampling())
        )
        _, happened = await asyncio.wait_for(job.inbox.get(), 60)
        engine.close()
        return [happened]

    assert [type(event) for event in asyncio.run(run())] == [Completion]
    assert [type(error) for error in failed] == [ValueError]
