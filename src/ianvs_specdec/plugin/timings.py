"""Timings of answers: the share of overlapping requests, and the conditions of the measurement."""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from ianvs_specdec.backends.base import LLM
from ianvs_specdec.common.types import Energy, Trace
from ianvs_specdec.plugin.energy import MACHINE
from ianvs_specdec.records.journal import Entry, Journal
from ianvs_specdec.records.run import current_concurrency

CONDITIONS = ("device", "threads", "instructions", "instructions_limit", "processor", "server", "vllm", "llama_cpp")
"""Reported properties of the hardware."""

MONOTONIC_EPOCH = time.time() - time.perf_counter()
"""Unix time at which ``time.perf_counter`` was 0, read once: later changes of the clock must not matter."""
ALONE = 0.99
"""Least share of its time of a request that ran alone."""


class Begun(NamedTuple):
    """The start of a request, for ``end``."""

    issued: float
    """``time.perf_counter`` at the start."""
    passed: float
    """Shared seconds since the start of the process."""


class UnderWay(NamedTuple):
    """Duration of a request and its share of it, in seconds."""

    elapsed: float
    share: float


class Overlap:
    """Each of ``n`` requests in progress gets 1/n of the time. Thread-safe."""

    def __init__(self) -> None:
        self.active = 0
        self._share = self._since = 0.0
        self._mutex = threading.Lock()

    def begin(self) -> Begun:
        """Start a request."""
        with self._mutex:
            self._pass(+1)
            return Begun(self._since, self._share)

    def end(self, begun: Begun) -> UnderWay:
        """End a request. Both times use the same clock readings, so that a request alone gets all its time."""
        with self._mutex:
            self._pass(-1)
            return UnderWay(self._since - begun.issued, self._share - begun.passed)

    def _pass(self, change: int) -> None:
        now = time.perf_counter()
        if self.active:
            self._share += (now - self._since) / self.active
        self._since = now
        self.active += change


REQUESTS = Overlap()
"""Requests of all models in this process."""


def stamp(
    trace: Trace, llm: LLM, *, issued: float, waited: float, under_way: UnderWay, energy: Energy | None = None
) -> None:
    """Complete the trace of a request. ``issued``: by ``time.perf_counter``; ``waited``: seconds in the queue."""
    trace.energy = energy
    alone = under_way.share >= ALONE * under_way.elapsed
    trace.busy = None if alone else round(under_way.share, 6)
    trace.issued, trace.memory, trace.target = round(MONOTONIC_EPOCH + issued, 6), llm.memory(), llm.target()
    trace.chunks = [(round(seconds + waited, 7), tokens) for seconds, tokens in trace.chunks]
    trace.answered = None if trace.answered is None else round(trace.answered + waited, 7)


def timing_conditions(llm: LLM) -> dict[str, Any]:
    """What timings depend on: the hardware, and the number of concurrent rows."""
    concurrency = current_concurrency()
    return {**llm.hardware(), **({"concurrency": concurrency} if concurrency > 1 else {})}


class Timings:
    """Counts a model's answers by the conditions of their timings. Not thread-safe."""

    def __init__(self) -> None:
        self._answers: collections.Counter[tuple[str, str | None, str]] = collections.Counter()

    def add(self, entry: Entry) -> None:
        trace = entry.completion.trace
        self._answers[entry.hardware, trace.target, "" if trace.energy is None else trace.energy.source] += 1

    def conditions(self, journal: Journal, template_time: str) -> Any:
        """``target`` (see ``types.Trace``), CONDITIONS, number of ``answers``, ``template_time``, and the ``energy``
        meter or why there is none. Several conditions are a list, most answers first."""
        found = []
        for (hardware, target, energy), answers in self._answers.most_common():
            value: Mapping[str, Any] = (journal.record(hardware) or {}).get("value") or {}
            known = {name: value[name] for name in CONDITIONS if value.get(name) is not None}
            known |= {"template_time": template_time} if template_time else {}
            known["energy"] = energy or f"not measured: {MACHINE.why_unknown(value)}"
            found.append({**({"target": target} if target else {}), **known, "answers": answers})
        return found[0] if len(found) == 1 else found
