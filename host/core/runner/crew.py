"""The workers of a Ray cluster for one test case: hired, given rows, replaced when they are lost."""

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

PATIENCE = 15.0
"""Seconds without any news after which it is said what is waited for."""
ASIDE = "aside"
"""Calls that do not wait for the rows in progress."""
GOODBYE, LATE_GOODBYE = 60.0, 5.0
"""Seconds that workers have to clean up their modules, and then those that still load them, which may take hours."""


@dataclass(eq=False)
class _Member:
    actor: Any
    node: str = ""
    rows: set[int] = field(default_factory=set)


class _Lost(Exception):
    """A worker is gone."""

    def __init__(self, member: _Member, error: RayError) -> None:
        super().__init__(str(error))
        self.member, self.error = member, error


@dataclass
class Crew:
    """Up to ``size`` workers that answer ``rows``. ``opening``: arguments of ``Worker.open``; ``lost``: workers lost
    since one has begun."""

    config: RayConfig
    concurrency: int
    size: int
    setup: Setup
    journal: Journal
    opening: tuple[Any, ...]
    rows: Sequence[Any]
    lost: int = 0

    def __post_init__(self) -> None:
        self._members: list[_Member] = []
        self._waiting = deque(range(len(self.rows)))
        self._losses = [0] * len(self.rows)
        self._pending: dict[Any, tuple[_Member, int | None]] = {}
        self._deadline: float | None = None

    def items(self) -> Iterator[tuple[int, Any, Failure | None]]:
        """``(index, result, failure)`` of rows as they come, after ``stop()`` of those in progress. Failed if no worker
        can answer."""
        said = False
        while self._waiting or any(member.rows for member in self._members):
            if self._deadline is not None and time.monotonic() > self._deadline:
                return
            self._hire()
            self._assign()
            handles = list(self._pending)
            ready, _ = ray.wait(handles, timeout=PATIENCE if self._deadline is None else 1.0)
            if ready:  # all that are, since each look at them takes a while
                ready, _ = ray.wait(handles, num_returns=len(handles), timeout=0)
            if not ready and not said and not any(member.node for member in self._members):
                said = True
                LOGGER.warning("still waiting for a worker to be placed and to load its models")
            lost = []
            for handle in ready:
                try:
                    item = self._receive(handle)
                except _Lost as loss:
                    # Rows that it has finished come first.
                    lost.append(loss)
                    continue
                if item is not None:
                    yield item
            for gone in lost:
                self._lose(gone.member, gone.error)

    def stop(self) -> None:
        if self._deadline is None:
            self._deadline = time.monotonic() + LAST_WAIT
            self._waiting.clear()
            for member in self._members:
                member.actor.stop.options(concurrency_group=ASIDE).remote()

    def _hire(self) -> None:
        """Hire workers for the rows that those who are still to come will not take."""
        coming = sum(not member.node for member in self._members)
        options = {"num_cpus": self.config.cpus, "num_gpus": self.config.gpus, "resources": self.config.resources}
        hired = remote(concurrency_groups={ASIDE: 1})(Worker).options(max_concurrency=self.concurrency, **options)
        while len(self._members) < self.size and len(self._waiting) > coming * self.config.shard:
            coming += 1
            member = _Member(hired.remote(self.setup))
            self._members.append(member)
            self._pending[member.actor.open.remote(*self.opening)] = member, None

    def _assign(self) -> None:
        while self._waiting:
            members = [member for member in self._members if member.node and len(member.rows) < self.config.shard]
            if not members:
                return
            member, index = min(members, key=lambda member: len(member.rows)), self._waiting.popleft()
            member.rows.add(index)
            self._pending[member.actor.answer.remote(self._name(index), self.rows[index])] = member, index

    def _name(self, index: int) -> str:
        return f"row {index + 1} of {len(self.rows)}"

    def _receive(self, handle: Any) -> tuple[int, Any, Failure | None] | None:
        """What a worker has to say: a row, a failure, or that it is ready. Raises ``_Lost`` where it is gone."""
        member, index = self._pending.pop(handle)
        if member not in self._members:  # lost meanwhile: the row is another's now
            return None
        try:
            answer = ray.get(handle)
        except RayTaskError as error:
            where = "preparing a worker" if index is None else self._name(index)
            message = f"a fault of the host itself on {member.node or 'a worker'}: {_reason(error)}"
            raise Failed(Failure(where, message, str(error))) from error
        except RayError as error:
            raise _Lost(member, error) from error
        if index is None:
            member.node, failure = answer
            if failure is not None:
                raise Failed(failure)
            self.lost = 0
            return None
        member.rows.discard(index)
        if answer is None:
            return None
        result, failure, news = answer
        if news:
            self.journal.take(news)
        return index, result, failure

    def _lose(self, member: _Member, error: RayError) -> None:
        if member not in self._members:  # of several rows the first told
            return
        self._dismiss(member)
        self.lost += 1
        where = f"on {member.node}" if member.node else "before it had begun"
        reason = f"a worker was lost {where} ({_reason(error)})"
        retries, rows = self.config.retries, sorted(member.rows)
        if self.lost > retries + self.size and not any(other.node for other in (member, *self._members)):
            raise Failed(Failure("runner ray", f"{reason}, the last of {self.lost}; none could begin", str(error)))
        for index in rows:
            self._losses[index] += 1
            if self._losses[index] > retries:
                message = f"{reason}, the last of {self._losses[index]} with this row; retries is {retries}"
                raise Failed(Failure(self._name(index), message, str(error)))
        if self._deadline is None:
            tries = max((self._losses[index] for index in rows), default=0)
            go = f"{plural(len(rows), 'row')} {'goes' if len(rows) == 1 else 'go'} to another, try {tries} of {retries}"
            LOGGER.warning("%s: %s", reason, go if rows else "it held no row")
            self._waiting.extendleft(reversed(rows))

    def release(self) -> list[Failure]:
        """Have all workers clean up their modules, those that still load them, too, and end them: what went wrong."""
        failures: list[Failure] = []
        farewells = [(bool(member.node), member.actor.release.remote()) for member in self._members]
        ready: list[Any] = []
        for loaded, seconds in ((True, GOODBYE), (False, LATE_GOODBYE)):
            handles = [handle for begun, handle in farewells if begun is loaded]
            ready += ray.wait(handles, num_returns=len(handles), timeout=seconds)[0] if handles else []
        for handle in ready:
            try:
                more, news = ray.get(handle)
            except RayError as error:
                LOGGER.warning("a worker was lost while it cleaned up (%s)", _reason(error))
                continue
            self.journal.take(news)
            failures += more
        self.close()
        return failures

    def close(self) -> None:
        """End all workers at once. What they have written on their nodes is removed by the next ones there."""
        for member in list(self._members):
            self._dismiss(member)

    def _dismiss(self, member: _Member) -> None:
        self._members.remove(member)
        with suppress(RayError, ValueError):
            ray.kill(member.actor)


def _reason(error: RayError) -> str:
    first = textwrap.shorten(next(iter(str(error).strip().splitlines()), ""), 120, placeholder=" ...")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
