"""How decoding threads tell the event loop what they have put out."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from ianvs_specdec.common.types import Completion, Sampling
from ianvs_specdec.serving.engine import Engine, _Mail
from ianvs_specdec.serving.metrics import Metrics
from ianvs_specdec.serving.protocol import parse
from tests.support.instant import Instant


class Counted:
    """A loop that counts how often it is woken."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop, self.woken = loop, 0

    def call_soon_threadsafe(self, call: Callable[[], None]) -> None:
        self.woken += 1
        self.loop.call_soon_threadsafe(call)


def test_one_wake_up_serves_for_all_that_is_told_until_the_loop_looks() -> None:
    async def run() -> None:
        mail, loop, read = _Mail(), Counted(asyncio.get_running_loop()), list[int]()
        sender: Any = loop

        def tell(first: int) -> None:
            for number in range(first, first + 100):
                mail.put(lambda number=number: read.append(number), sender)
                mail.announce()

        for first in (0, 100):
            thread = threading.Thread(target=tell, args=(first,))
            thread.start()
            # The loop is busy meanwhile.
            thread.join()
            await asyncio.sleep(0)
            assert read == list(range(first + 100))
            assert loop.woken == 1 + first // 100

    asyncio.run(run())


def test_nothing_is_left_where_many_tell_while_the_loop_looks() -> None:
    async def run() -> None:
        mail, loop, read, told = _Mail(), asyncio.get_running_loop(), list[int](), 20_000

        def tell() -> None:
            for number in range(told):
                mail.put(lambda number=number: read.append(number), loop)
                mail.announce()

        await asyncio.gather(*(asyncio.to_thread(tell) for _ in range(4)))
        await asyncio.sleep(0)
        assert len(read) == 4 * told

    asyncio.run(run())


def test_a_letter_that_fails_takes_no_other_with_it() -> None:
    async def run() -> None:
        mail, loop, read, failed = _Mail(), asyncio.get_running_loop(), list[int](), list[object]()
        loop.set_exception_handler(lambda _, context: failed.append(context["exception"]))
        for number in (2, 0, 1):
            mail.put(lambda number=number: read.append(2 // number), loop)
        mail.announce()
        for _ in range(3):
            await asyncio.sleep(0)
        assert read == [1, 2]
        assert [type(error) for error in failed] == [ZeroDivisionError]

    asyncio.run(run())


def test_whoever_tells_a_loop_that_is_closed_hears_of_it_each_time() -> None:
    mail, loop = _Mail(), asyncio.new_event_loop()
    loop.close()
    for _ in range(2):
        mail.put(lambda: None, loop)
        with pytest.raises(RuntimeError):
            mail.announce()


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
        return [piece for piece in self.job._events._queue if isinstance(piece, str)]


def test_chunks_are_sent_on_when_the_back_end_says_so_and_at_the_end() -> None:
    async def run() -> tuple[list[list[str]], list[object]]:
        llm = Gathering("m")
        llm.loop = asyncio.get_running_loop()
        engine = Engine(llm, 0, 1, Metrics("m", "instant"))
        asked = parse(b'{"model": "m", "messages": [{"role": "user", "content": "x"}]}', "m", Sampling())
        llm.job = job = engine.submit(asked)
        events: list[object] = []
        while not (events and isinstance(events[-1], Completion)):
            await asyncio.sleep(0.01)
            if job.over:
                events += await asyncio.wait_for(job.events(), 60)
        engine.close()
        return llm.seen, events

    seen, events = asyncio.run(run())
    assert seen == [[], [], ["a", "b"], ["a", "b"]]
    assert [*map(type, events)] == [str, str, str, Completion]


def test_an_answer_comes_even_if_it_cannot_be_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def counted(metrics: Metrics, completion: Completion, waited: float) -> None:
        raise ValueError("counters can only go up")

    monkeypatch.setattr(Metrics, "completed", counted)
    failed = list[object]()

    async def run() -> list[object]:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context["exception"]))
        engine = Engine(Instant("m"), 0, 1, Metrics("m", "instant"))
        job = engine.submit(parse(b'{"model": "m", "messages": [{"role": "user", "content": "x"}]}', "m", Sampling()))
        events = await asyncio.wait_for(job.events(), 60)
        engine.close()
        return list(events)

    assert [type(event) for event in asyncio.run(run())] == [Completion]
    assert [type(error) for error in failed] == [ValueError]
