"""Times of a model's answers: each one's share where requests overlap, and what they were taken with."""

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

TOLD = ("device", "threads", "instructions", "instructions_limit", "processor", "server", "vllm", "llama_cpp")
"""What is told of the hardware of an answer, as far as its back end knows it."""


MONOTONIC_EPOCH = time.time() - time.perf_counter()
"""The clock time (Unix seconds) at which ``time.perf_counter`` was 0, read once: if the clock is set later, requests
must not seem to overlap."""
ALONE = 0.99
"""A request whose share of its time is at least this had no other one beside it."""


class Begun(NamedTuple):
    """The beginning of a request, which ``end`` takes."""

    issued: float
    """``time.perf_counter`` at that moment."""
    passed: float
    """Seconds that one request alone would have had since the process began."""


class UnderWay(NamedTuple):
    """How long a request was under way (seconds), and how much of that was its own share."""

    elapsed: float
    share: float


class Overlap:
    """While ``n`` requests are under way, a ``n``-th of the time that passes is each one's. Thread-safe."""

    def __init__(self) -> None:
        self.active = 0
        self._share = self._since = 0.0
        self._mutex = threading.Lock()

    def begin(self) -> Begun:
        """A request begins."""
        with self._mutex:
            self._pass(+1)
            return Begun(self._since, self._share)

    def end(self, begun: Begun) -> UnderWay:
        """A request ends. Both its times come from the same two looks at the clock: alone, it has all of its time."""
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
"""Those of all models in this process: edge and cloud share its time."""


def stamp(
    trace: Trace, llm: LLM, *, issued: float, waited: float, under_way: UnderWay, energy: Energy | None = None
) -> None:
    """Complete the trace of a request: ``issued`` by ``time.perf_counter``, seconds ``waited`` for others,
    ``under_way``."""
    trace.energy = energy
    alone = under_way.share >= ALONE * under_way.elapsed
    trace.busy = None if alone else round(under_way.share, 6)
    trace.issued, trace.memory, trace.target = round(MONOTONIC_EPOCH + issued, 6), llm.memory(), llm.target()
    trace.chunks = [(round(seconds + waited, 7), tokens) for seconds, tokens in trace.chunks]
    trace.answered = None if trace.answered is None else round(trace.answered + waited, 7)


def timing_conditions(llm: LLM) -> dict[str, Any]:
    """What the timings depend on. With other rows beside it, an answer takes another time than alone."""
    concurrency = current_concurrency()
    return {**llm.hardware(), **({"concurrency": concurrency} if concurrency > 1 else {})}


class Timings:
    """Counts a model's answers by what their times were taken with, be it in an earlier run. Not thread-safe."""

    def __init__(self) -> None:
        self._answers: collections.Counter[tuple[str, str | None, str]] = collections.Counter()

    def add(self, entry: Entry) -> None:
        trace = entry.completion.trace
        self._answers[entry.hardware, trace.target, "" if trace.energy is None else trace.energy.source] += 1

    def told(self, journal: Journal, template_time: str) -> Any:
        """``target`` (see ``types.Trace``), ``device``, ``threads``, ``instructions`` and so on, with the number of
        ``answers``, ``template_time`` and what measured their ``energy``, or why none did; a list of these where there
        are several, those with most answers first.
        """
        found = []
        for (hardware, target, energy), answers in self._answers.most_common():
            value: Mapping[str, Any] = (journal.record(hardware) or {}).get("value") or {}
            known = {name: value[name] for name in TOLD if value.get(name) is not None}
            known |= {"template_time": template_time} if template_time else {}
            known["energy"] = energy or f"not measured: {MACHINE.why_unknown(value)}"
            found.append({**({"target": target} if target else {}), **known, "answers": answers})
        return found[0] if len(found) == 1 else found
