"""The local runner: answers up to ``concurrency`` rows at a time in threads, and returns them in order."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, ClassVar

from core.testcasecontroller.paradigm import JointInference
from core.testcasecontroller.testcase import Progress, Runner

LAST_WAIT = 30.0
"""Seconds for rows in progress to finish after a failed row."""
AHEAD = 64
"""Maximum number of rows per thread that are started beyond the first unanswered one."""


class RowFailed(Exception):
    def __init__(self, index: int, error: Any) -> None:
        super().__init__(f"row {index + 1}: {error}")
        self.index, self.error = index, error


def in_order(
    items: Iterable[tuple[int, Any, Any]], progress: Progress, stop: Callable[[], None]
) -> Generator[Any, None, None]:
    """The results in the order of the rows. ``items``: ``(index, result, error or None)`` as rows finish.

    At an error ``stop`` is called, after which ``items`` should end soon. RowFailed is raised for the first failed row,
    after the results of the rows before it.
    """
    early: dict[int, Any] = {}
    errors: dict[int, Any] = {}
    delivered = 0
    for finished, (index, result, error) in enumerate(items, 1):
        if error is not None:
            errors[index] = error
            stop()
            continue
        early[index] = result
        progress(finished)
        while delivered in early:
            yield early.pop(delivered)
            delivered += 1
    if errors:
        raise RowFailed(*min(errors.items()))


class LocalRunner(Runner):
    """With ``concurrency`` 1, the calling thread answers the rows."""

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
            raise failed.error from failed.error.__cause__
        finally:
            threads.stop()

    def describe(self) -> dict[str, Any]:
        return {"runner": "local", "concurrency": self.concurrency}


class Threads:
    """A pool of daemon threads: those of ``concurrent.futures`` would keep a process with a hanging request alive."""

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
        """Rows as they finish; after ``stop`` those that finish within LAST_WAIT."""
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
        """Answer rows until none is left. None marks the end of the thread."""
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
