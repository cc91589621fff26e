"""The workers of one test case on a Ray cluster: start, assignment of rows, replacement of lost workers."""

from __future__ import annotations

import textwrap
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from core.common.errors import Failed, Failure
from core.common.log import LOGGER
from core.common.utils import plural
from core.runner.config import RayConfig
from core.runner.journal import Journal
from core.runner.local import LAST_WAIT
from core.runner.worker import Setup, Worker

remote: Any = ray.remote  # whose annotations lack concurrency groups

QUIET_SECONDS = 15.0
"""Seconds without a result after which a warning says what the run waits for."""
CONTROL = "control"
"""Concurrency group of calls that do not wait for the rows in progress."""
CLEANUP_SECONDS, LOADING_SECONDS = 60.0, 5.0
"""Seconds for workers to clean up their modules, then for those that still load them."""


@dataclass(eq=False)
class _Handle:
    actor: Any
    node: str = ""
    rows: set[int] = field(default_factory=set)


class _Lost(Exception):
    """A worker was lost."""

    def __init__(self, worker: _Handle, error: RayError) -> None:
        super().__init__(str(error))
        self.worker, self.error = worker, error


@dataclass
class WorkerPool:
    """Up to ``size`` workers that answer ``rows``. ``opening``: arguments of ``Worker.open``; ``lost``: workers lost
    since the last one that started."""

    config: RayConfig
    concurrency: int
    size: int
    setup: Setup
    journal: Journal
    opening: tuple[Any, ...]
    rows: Sequence[Any]
    lost: int = 0

    def __post_init__(self) -> None:
        self._workers: list[_Handle] = []
        self._waiting = deque(range(len(self.rows)))
        self._losses = [0] * len(self.rows)
        self._pending: dict[Any, tuple[_Handle, int | None]] = {}
        self._deadline: float | None = None

    def items(self) -> Iterator[tuple[int, Any, Failure | None]]:
        """``(index, result, failure)`` of rows as they finish; after ``stop()`` of those in progress. Raises Failed if
        no worker can answer."""
        warned = False
        while self._waiting or any(worker.rows for worker in self._workers):
            if self._deadline is not None and time.monotonic() > self._deadline:
                return
            self._start_workers()
            self._assign()
            handles = list(self._pending)
            ready, _ = ray.wait(handles, timeout=QUIET_SECONDS if self._deadline is None else 1.0)
            if ready:  # get all finished ones at once, since a call is slow
                ready, _ = ray.wait(handles, num_returns=len(handles), timeout=0)
            if not ready and not warned and not any(worker.node for worker in self._workers):
                warned = True
                LOGGER.warning("still waiting for a worker to be placed and to load its models")
            lost = []
            for handle in ready:
                try:
                    item = self._receive(handle)
                except _Lost as loss:
                    lost.append(loss)
                    continue
                if item is not None:
                    yield item
            for gone in lost:
                self._lose(gone.worker, gone.error)

    def stop(self) -> None:
        if self._deadline is None:
            self._deadline = time.monotonic() + LAST_WAIT
            self._waiting.clear()
            for worker in self._workers:
                worker.actor.stop.options(concurrency_group=CONTROL).remote()

    def _start_workers(self) -> None:
        """Start workers for the waiting rows that workers which are still starting will not take."""
        starting = sum(not worker.node for worker in self._workers)
        options = {"num_cpus": self.config.cpus, "num_gpus": self.config.gpus, "resources": self.config.resources}
        worker_class = remote(concurrency_groups={CONTROL: 1})(Worker).options(
            max_concurrency=self.concurrency, **options
        )
        while len(self._workers) < self.size and len(self._waiting) > starting * self.config.shard:
            starting += 1
            worker = _Handle(worker_class.remote(self.setup))
            self._workers.append(worker)
            self._pending[worker.actor.open.remote(*self.opening)] = worker, None

    def _assign(self) -> None:
        while self._waiting:
            workers = [worker for worker in self._workers if worker.node and len(worker.rows) < self.config.shard]
            if not workers:
                return
            worker, index = min(workers, key=lambda worker: len(worker.rows)), self._waiting.popleft()
            worker.rows.add(index)
            self._pending[worker.actor.answer.remote(self._name(index), self.rows[index])] = worker, index

    def _name(self, index: int) -> str:
        return f"row {index + 1} of {len(self.rows)}"

    def _receive(self, handle: Any) -> tuple[int, Any, Failure | None] | None:
        """Process a worker's reply: a row, or None for others. Raises ``_Lost``, or Failed for a failed start."""
        worker, index = self._pending.pop(handle)
        if worker not in self._workers:  # lost meanwhile: another worker has the row
            return None
        try:
            answer = ray.get(handle)
        except RayTaskError as error:
            where = "preparing a worker" if index is None else self._name(index)
            message = f"a fault of the host itself on {worker.node or 'a worker'}: {_reason(error)}"
            raise Failed(Failure(where, message, str(error))) from error
        except RayError as error:
            raise _Lost(worker, error) from error
        if index is None:
            worker.node, failure = answer
            if failure is not None:
                raise Failed(failure)
            self.lost = 0
            return None
        worker.rows.discard(index)
        if answer is None:
            return None
        result, failure, added = answer
        if added:
            self.journal.add(added)
        return index, result, failure

    def _lose(self, worker: _Handle, error: RayError) -> None:
        if worker not in self._workers:  # already known from another row
            return
        self._kill(worker)
        self.lost += 1
        where = f"on {worker.node}" if worker.node else "before its start"
        reason = f"a worker was lost {where} ({_reason(error)})"
        retries, rows = self.config.retries, sorted(worker.rows)
        if self.lost > retries + self.size and not any(other.node for other in (worker, *self._workers)):
            raise Failed(Failure("runner ray", f"{reason}, the last of {self.lost}; none could start", str(error)))
        for index in rows:
            self._losses[index] += 1
            if self._losses[index] > retries:
                message = f"{reason}, the last of {self._losses[index]} with this row; retries is {retries}"
                raise Failed(Failure(self._name(index), message, str(error)))
        if self._deadline is None:
            tries = max((self._losses[index] for index in rows), default=0)
            moved = f"{plural(len(rows), 'row')} reassigned, try {tries} of {retries}"
            LOGGER.warning("%s: %s", reason, moved if rows else "it had no row")
            self._waiting.extendleft(reversed(rows))

    def release(self) -> list[Failure]:
        """Have all workers clean up their modules, and end them. Returns the failures."""
        failures: list[Failure] = []
        releases = [(bool(worker.node), worker.actor.release.remote()) for worker in self._workers]
        ready: list[Any] = []
        for loaded, seconds in ((True, CLEANUP_SECONDS), (False, LOADING_SECONDS)):
            handles = [handle for has_started, handle in releases if has_started is loaded]
            ready += ray.wait(handles, num_returns=len(handles), timeout=seconds)[0] if handles else []
        for handle in ready:
            try:
                more, added = ray.get(handle)
            except RayError as error:
                LOGGER.warning("a worker was lost while it cleaned up (%s)", _reason(error))
                continue
            self.journal.add(added)
            failures += more
        self.close()
        return failures

    def close(self) -> None:
        """Kill all workers. The next workers on their nodes remove their files."""
        for worker in list(self._workers):
            self._kill(worker)

    def _kill(self, worker: _Handle) -> None:
        self._workers.remove(worker)
        with suppress(RayError, ValueError):
            ray.kill(worker.actor)


def _reason(error: RayError) -> str:
    first = textwrap.shorten(next(iter(str(error).strip().splitlines()), ""), 120, placeholder=" ...")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
