"""Rows answered in this process, up to ``concurrency`` at the same time."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from core.runner.base import Progress, Runner

if TYPE_CHECKING:
    from core.testcasecontroller.algorithm.paradigm import JointInference
    from core.testcasecontroller.testcase import TestCase

LAST_WAIT = 30.0
"""Seconds that rows in progress have, after another row has failed, to bring their answers home."""
AHEAD = 64
"""How many rows for each thread may be begun beyond the first one that is not answered yet."""


class LocalRunner(Runner):
    """With ``concurrency`` 1 rows are answered one after the other by the calling thread."""

    in_process: ClassVar[bool] = True

    def __init__(self, concurrency: int = 1) -> None:
        self.concurrency = concurrency

    def results(
        self, case: TestCase, paradigm: JointInference, rows: Sequence[Any], progress: Progress
    ) -> Generator[Any, None, None]:
        answer, stage = paradigm.start(), paradigm.stage
        if self.concurrency == 1:
            for i, row in enumerate(rows):
                stage.at_row(i)
                yield answer(row)
            return
        threads = _Threads(answer, rows, self.concurrency)
        try:
            yield from threads.results(progress)
        except RowFailed as failed:
            stage.at_row(failed.index)
            raise failed.error from failed.error.__cause__
        finally:
            threads.stop()

    def describe(self) -> dict[str, Any]:
        return {"runner": "local", "concurrency": self.concurrency}


class RowFailed(Exception):
    """The row with this index could not be answered."""

    def __init__(self, index: int, error: BaseException) -> None:
        super().__init__(f"row {index + 1}: {error}")
        self.index, self.error = index, error


class _Threads:
    """A pool of threads that end with the process: those of the standard library would keep it from ending as long as
    a request hangs.
    """

    def __init__(self, answer: Callable[[Any], Any], rows: Sequence[Any], size: int) -> None:
        self._answer, self._rows = answer, rows
        self._lock = threading.Lock()
        self._next = 0
        self._stopped = False
        self._ahead = threading.Semaphore(size * AHEAD)
        self._out: queue.SimpleQueue[tuple[int, Any, BaseException | None]] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, name=f"row-{n}", daemon=True) for n in range(min(size, len(rows)))
        ]

    def results(self, progress: Progress) -> Iterator[Any]:
        for thread in self._threads:
            thread.start()
        early: dict[int, Any] = {}
        delivered, finished = 0, 0
        while delivered < len(self._rows):
            index, result, error = self._out.get()
            finished += 1
            if error is not None:
                yield from self._last_results(early, delivered, finished, RowFailed(index, error))
            early[index] = result
            progress(finished)
            while delivered in early:
                yield early.pop(delivered)
                delivered += 1
                self._ahead.release()

    def _last_results(self, early: dict[int, Any], delivered: int, finished: int, failed: RowFailed) -> Iterator[Any]:
        """Wait for the rows in progress, yield those before the first failed one, and raise that one's failure."""
        self.stop()
        with self._lock:
            begun = self._next
        deadline = time.monotonic() + LAST_WAIT
        while finished < begun and (left := deadline - time.monotonic()) > 0:
            try:
                index, result, error = self._out.get(timeout=left)
            except queue.Empty:
                break
            finished += 1
            if error is None:
                early[index] = result
            elif index < failed.index:
                failed = RowFailed(index, error)
        while delivered in early:
            yield early.pop(delivered)
            delivered += 1
        raise failed

    def stop(self) -> None:
        """Begin no further row."""
        self._stopped = True
        for _ in self._threads:
            self._ahead.release()

    def _work(self) -> None:
        while (index := self._take()) is not None:
            try:
                self._out.put((index, self._answer(self._rows[index]), None))
            except BaseException as error:
                self._stopped = True
                self._out.put((index, None, error))

    def _take(self) -> int | None:
        self._ahead.acquire()
        with self._lock:
            if self._stopped or self._next >= len(self._rows):
                return None
            self._next += 1
            return self._next - 1
