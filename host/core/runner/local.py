"""Rows answered in this process, up to ``concurrency`` at the same time."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, ClassVar

from core.runner.order import RowFailed, in_order
from core.testcasecontroller.algorithm.paradigm import JointInference
from core.testcasecontroller.testcase import Progress, Runner

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
        self, case_id: str, paradigm: JointInference, rows: Sequence[Any], progress: Progress
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
            raise failed.fault from failed.fault.__cause__
        finally:
            threads.stop()

    def describe(self) -> dict[str, Any]:
        return {"runner": "local", "concurrency": self.concurrency}


class _Threads:
    """A pool of threads that end with the process: those of the standard library would keep it from ending as long as
    a request hangs.
    """

    def __init__(self, answer: Callable[[Any], Any], rows: Sequence[Any], size: int) -> None:
        self._answer, self._rows = answer, rows
        self._lock = threading.Lock()
        self._next = 0
        self._stopped = False
        self._deadline: float | None = None
        self._ahead = threading.Semaphore(size * AHEAD)
        self._out: queue.SimpleQueue[tuple[int, Any, BaseException | None]] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, name=f"row-{n}", daemon=True) for n in range(min(size, len(rows)))
        ]

    def results(self, progress: Progress) -> Iterator[Any]:
        for thread in self._threads:
            thread.start()
        for result in in_order(self._items(), progress, self.stop):
            yield result
            self._ahead.release()

    def _items(self) -> Iterator[tuple[int, Any, BaseException | None]]:
        """All rows as they come; after ``stop`` those in progress, as far as they come within LAST_WAIT."""
        finished, end = 0, len(self._rows)
        while finished < end:
            left = None if self._deadline is None else self._deadline - time.monotonic()
            try:
                yield self._out.get(timeout=left and max(left, 0))
            except queue.Empty:
                return
            finished += 1
            if self._stopped:
                with self._lock:
                    end = self._next

    def stop(self) -> None:
        """Begin no further row."""
        self._stopped = True
        self._deadline = self._deadline or time.monotonic() + LAST_WAIT
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
