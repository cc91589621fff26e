"""How decoding threads tell the event loop what they have put out."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from ianvs_specdec.serving.engine import _Mail


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
                mail.send(lambda number=number: read.append(number), sender)

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
                mail.send(lambda number=number: read.append(number), loop)

        await asyncio.gather(*(asyncio.to_thread(tell) for _ in range(4)))
        await asyncio.sleep(0)
        assert len(read) == 4 * told

    asyncio.run(run())
