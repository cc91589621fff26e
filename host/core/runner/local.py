"""Rows answered in this process, up to ``concurrency`` at the same time, and given out in their order."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, ClassVar

from core.testcasecontroller.paradigm import JointInference
from core.testcasecontroller.testcase import Progress, Runner

LAST_WAIT = 30.0
"""Seconds that rows in progress have to end after another row has failed."""
AHEAD = 64
"""How many rows for each thread may be begun beyond the first one that is not answered yet."""


class RowFailed(Exception):
    def __init__(self, index: int, fault: Any) -> None:
        super().__init__(f"row {index + 1}: {fault}")
        self.index, self.fault = index, fault


def in_order(
    items: Iterable[tuple[int, Any, Any]], progress: Progress, stop: Callable[[], None]
) -> Generator[Any, None, None]:
    """Each row's result. ``items``: ``(index, result, fault)`` as they come; a fault of None means an answer.

    At a fault ``stop`` is called: ``items`` is to end soon. What it still gives counts, and then RowFailed tells the
    first row that failed, after the results of the rows before it.
    """
    early: dict[int, Any] = {}
    faults: dict[int, Any] = {}
    delivered = 0
    for finished, (index, result, fault) in enumerate(items, 1):
        if fault is not None:
            faults[index] = fault
            stop()
            continue
        early[index] = result
        progress(finished)
        while delivered in early:
            yield early.pop(delivered)
            delivered += 1
    if faults:
        raise RowFailed(*min(faults.items()))


class LocalRunner(Runner):
    """With ``concurrency`` 1 rows are answered one after the other by the calling thread."""

    in_process: ClassVar[bool] = True

    def __init__(self, concurrency: int = 1) -> None:
        self.concurrency = concurrency

    def results(
        self, case_id: str, paradigm: JointInference, rows: Sequence[Any], progress: Progress
    ) -> Generator[Any, None, None]:
        answer, stage = paradigm.start(), paradigm.stage
        if self.concurrency == 1:
            for i, row in enumerate(rows):
                stage.at_row(i)
                yield answer(row)
            return
        threads = Threads(answer, rows, self.concurrency)
        try:
            yield from threads.results(progress)
        except RowFailed as failed:
            stage.at_row(failed.index)
            raise failed.fault from failed.fault.__cause__
        finally:
            threads.stop()

    def describe(self) -> dict[str, Any]:
        return {"runner": "local", "concurrency": self.concurrency}


class Threads:
    """A pool of threads that end with the process: those of ``concurrent.futures`` would keep it from ending as long as
    a request hangs.
    """

    def __init__(self, answer: Callable[[Any], Any], rows: Sequence[Any], size: int) -> None:
        self._answer, self._rows = answer, rows
        self._indices = iter(range(len(rows)))
        self._deadline: float | None = None
        self._ahead = threading.Semaphore(size * AHEAD)
        self._out: queue.SimpleQueue[tuple[int, Any, BaseException | None] | None] = queue.SimpleQueue()
        self.threads = [threading.Thread(target=self._work, daemon=True) for _ in range(min(size, len(rows)))]

    def results(self, progress: Progress) -> Iterator[Any]:
        for thread in self.threads:
            thread.start()
        for result in in_order(self._items(), progress, self.stop):
            yield result
            self._ahead.release()

    def _items(self) -> Iterator[tuple[int, Any, BaseException | None]]:
        """All rows as they come; after ``stop`` those in progress, as far as they come within LAST_WAIT."""
        working = len(self.threads)
        while working:
            left = None if self._deadline is None else max(self._deadline - time.monotonic(), 0)
            try:
                item = self._out.get(timeout=left)
            except queue.Empty:
                return
            if item is None:
                working -= 1
            else:
                yield item

    def stop(self) -> None:
        self._deadline = self._deadline or time.monotonic() + LAST_WAIT
        self._ahead.release(len(self.threads) or 1)

    def _work(self) -> None:
        """Answer rows until there is none left; None says that this thread has ended."""
        while self._ahead.acquire() and self._deadline is None:
            index = next(self._indices, None)
            if index is None:
                break
            try:
                self._out.put((index, self._answer(self._rows[index]), None))
            except BaseException as error:
                self.stop()
                self._out.put((index, None, error))
        self._out.put(None)
