"""The workers of a Ray cluster: hired, given shards, replaced when they are lost."""

from __future__ import annotations

import textwrap
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from core.common.errors import Failed, Failure
from core.common.log import LOGGER
from core.runner.config import RayConfig
from core.runner.journal import Journal
from core.runner.local import LAST_WAIT
from core.runner.worker import Setup, Worker

remote: Any = ray.remote  # whose annotations lack concurrency groups

PATIENCE = 15.0
"""Seconds without any news after which it is said what is waited for."""
ASIDE = "aside"
"""Calls that do not wait for the one in progress: all others are done one after the other."""
GOODBYE = 60.0
"""Seconds that workers have to clean up their modules."""
MOMENT = 0.5
"""Seconds that workers have to remove their files."""


@dataclass
class Shard:
    """Rows ``first`` to ``last``, exclusive; ``first`` moves on with each row that has come back."""

    first: int
    last: int
    losses: int = 0

    def __str__(self) -> str:
        return f"rows {self.first + 1} to {self.last}" if self.last - self.first > 1 else f"row {self.last}"


@dataclass
class _Member:
    """A worker. ``read``: pieces of the journal that it has; ``node`` is empty until it has answered once."""

    actor: Any
    node: str = ""
    read: int = 0
    shard: Shard | None = None


class Crew:
    """Up to ``size`` workers, kept for all test cases of a job. ``lost`` counts those lost in the current one."""

    def __init__(self, config: RayConfig, size: int, setup: Setup, journal: Journal) -> None:
        self._config, self._size, self._setup, self._journal = config, size, setup, journal
        self._pieces: list[Any] = []
        self._members: list[_Member] = []
        self._busy: dict[Any, _Member] = {}
        self._idle: list[_Member] = []
        self._shards: deque[Shard] = deque()
        self._stopped: float | None = None
        self.lost = 0

    def begin(self, case_id: str, variables: dict[str, str], rows: Sequence[Any]) -> None:
        """Open a test case on all workers that there are. ``variables`` are set in their environment."""
        self._case, self._rows = (case_id, variables), rows
        size, total = self._config.shard, len(rows)
        self._shards = deque(Shard(first, min(first + size, total)) for first in range(0, total, size))
        self._stopped, self.lost, self._begun = None, 0, False
        self._pieces += [ray.put(piece) for piece in self._journal.news()]
        self._busy, self._idle = {}, []
        for member in self._members:
            self._open(member)

    def items(self) -> Iterator[tuple[int, Any, Failure | None]]:
        """``(index, result, failure)`` of rows, as they come. Ends when all have come, or after ``stop()`` when the
        workers have. Failed if a shard has lost more workers than it may.
        """
        said = False
        while True:
            self._assign()
            if not self._working():
                return
            handles = list(self._busy)
            ready, _ = ray.wait(handles, num_returns=1, timeout=PATIENCE if self._stopped is None else 1.0)
            if not ready and not said and self._stopped is None and all(not m.node for m in self._members):
                said = True
                LOGGER.warning("still waiting for the cluster to place a worker")
            for handle in ready:
                item = self._receive(handle)
                if item is not None:
                    yield item

    def stop(self) -> None:
        """Begin no further row; those in progress have LAST_WAIT seconds."""
        if self._stopped is None:
            self._stopped = time.monotonic() + LAST_WAIT
            self._shards.clear()
            for member in self._members:
                if member.shard is not None:
                    member.actor.stop.options(concurrency_group=ASIDE).remote()

    def _working(self) -> bool:
        if self._stopped is not None:
            return time.monotonic() < self._stopped and any(member.shard for member in self._busy.values())
        return bool(self._shards) or any(member.shard for member in self._busy.values())

    def _assign(self) -> None:
        """Give the idle workers shards, and hire workers for the shards that remain."""
        while self._shards and self._idle:
            member, shard = self._idle.pop(), self._shards.popleft()
            rows = list(self._rows[shard.first : shard.last])
            answer = member.actor.answer.options(num_returns="streaming")
            member.shard = shard
            self._busy[answer.remote(shard.first, len(self._rows), rows)] = member
        opening = sum(member.shard is None for member in self._busy.values())
        while len(self._members) < self._size and len(self._shards) > opening:
            opening += 1
            config = self._config
            options = {"num_cpus": config.cpus, "num_gpus": config.gpus, "resources": config.resources}
            hired = remote(concurrency_groups={ASIDE: 1})(Worker).options(**options)
            self._members.append(_Member(hired.remote(self._setup)))
            self._open(self._members[-1])

    def _open(self, member: _Member) -> None:
        pieces, member.read = self._pieces[member.read :], len(self._pieces)
        self._busy[member.actor.open.remote(*self._case, *pieces)] = member

    def _receive(self, handle: Any) -> tuple[int, Any, Failure | None] | None:
        """What a worker has to say: a row, a failure, or that it is free."""
        member = self._busy[handle]
        shard = member.shard
        try:
            if shard is None:
                member.node, failure = ray.get(handle)
                self._free(handle, member)
                if failure is not None:
                    raise Failed(failure)
                return None
            kind, value, news = ray.get(next(handle))
        except StopIteration:
            if shard is not None and shard.first < shard.last and self._stopped is None:
                message = f"a worker on {member.node} ended before it had answered them"
                raise Failed(Failure(str(shard), message, message)) from None
            self._free(handle, member)
            return None
        except RayTaskError as error:
            where = str(shard) if shard else "preparing a worker"
            message = f"a fault of the host itself on {member.node or 'a worker'}: {_reason(error)}"
            raise Failed(Failure(where, message, str(error))) from error
        except RayError as error:
            self._lose(handle, member, error)
            return None
        self._journal.take(news)
        index = shard.first
        if kind == "failed":
            return index, None, value
        shard.first += 1
        return index, value, None

    def _free(self, handle: Any, member: _Member) -> None:
        del self._busy[handle]
        member.shard = None
        self._idle.append(member)
        self._begun = True

    def _lose(self, handle: Any, member: _Member, error: RayError) -> None:
        """A worker is gone: what it has not answered goes to another."""
        del self._busy[handle]
        self._members.remove(member)
        with suppress(RayError, ValueError):
            ray.kill(member.actor)
        self.lost += 1
        shard, where = member.shard, f"on {member.node}" if member.node else "before it had begun"
        reason = f"a worker was lost {where} ({_reason(error)})"
        if shard is None:
            if self.lost > self._config.retries + self._size and not self._begun:
                raise Failed(Failure("runner ray", f"{reason}, the last of {self.lost}; none could begin", str(error)))
            LOGGER.warning("%s", reason)
            return
        shard.losses += 1
        if shard.first == shard.last:
            return
        if shard.losses > self._config.retries:
            message = f"{reason}, the last of {shard.losses} with these rows; retries is {self._config.retries}"
            raise Failed(Failure(str(shard), message, str(error)))
        if self._stopped is None:
            LOGGER.warning("%s: %s go to another, try %d of %d", reason, shard, shard.losses, self._config.retries)
            self._shards.appendleft(shard)

    def release(self) -> list[Failure]:
        """Have all workers clean up their modules: what went wrong. Those that are still to be placed are given up."""
        failures: list[Failure] = []
        for member in [member for member in self._members if not member.node]:
            self._members.remove(member)
            ray.kill(member.actor)
        waiting = {member.actor.release.remote(): member for member in self._members}
        ready, late = ray.wait(list(waiting), num_returns=len(waiting), timeout=GOODBYE) if waiting else ([], [])
        for handle in ready:
            try:
                more, news = ray.get(handle)
            except RayError as error:
                LOGGER.warning("a worker was lost while it cleaned up (%s)", _reason(error))
                late.append(handle)
                continue
            self._journal.take(news)
            failures += more
        for handle in late:
            self._members.remove(waiting[handle])
            ray.kill(waiting[handle].actor)
        self._journal.sync()
        return failures

    def dismiss(self) -> None:
        """End all workers at once; each has a moment to remove what it has written on its node."""
        farewells = [
            member.actor.close.options(concurrency_group=ASIDE).remote() for member in self._members if member.node
        ]
        with suppress(RayError):
            if farewells:
                ray.wait(farewells, num_returns=len(farewells), timeout=MOMENT)
        for member in self._members:
            with suppress(RayError, ValueError):
                ray.kill(member.actor)
        self._members.clear()


def _reason(error: RayError) -> str:
    """The kind of the error and the first line of what Ray says about it."""
    first = textwrap.shorten(next(iter(str(error).strip().splitlines()), ""), 120, placeholder=" ...")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
