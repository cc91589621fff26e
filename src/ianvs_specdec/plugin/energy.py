"""The energy of a model's answers: each one's share of what this machine used where requests overlap."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

from ianvs_specdec.common.energy import Meter
from ianvs_specdec.common.types import Energy
from ianvs_specdec.records.run import on_worker

IDLE_SECONDS = 1.0
SAMPLING = 0.1
"""Seconds between two readings during a request: a battery, and a GPU before Volta, has a power, but no counter, and
AMD's counters begin anew after 65,532 J."""
Mark = tuple[float, float, int]
"""Joules and seconds that one request alone would have used until now, and how often that could not be read."""


class EnergyShares:
    """While ``n`` requests are under way on this machine, an ``n``-th of what it uses is each one's. ``idle``: watts
    used without work. Thread-safe."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self.idle: float | None = None
        self.active = self._gaps = 0
        self._joules = self._seconds = 0.0
        self._mutex = threading.Lock()
        self._sampler = threading.Thread(target=self._sample, daemon=True)

    def measure_idle(self) -> None:
        """Unless it is known already. To be called before anything computes."""
        if self.idle is None and not self.active and (mark := self.begin({})):
            time.sleep(IDLE_SECONDS)
            if used := self.end(mark):
                self.idle = used.joules / used.seconds

    def begin(self, hardware: Mapping[str, Any]) -> Mark | None:
        """A request begins; None where its energy cannot be known. ``hardware`` is what its model runs on."""
        with self._mutex:
            if _unmeasured(hardware) or not self.meter.find():
                return None
            self._pass(+1)
            if self._sampler.ident is None:
                self._sampler.start()
            return self._joules, self._seconds, self._gaps

    def end(self, mark: Mark | None) -> Energy | None:
        """A request ends. None where not all that it used is known."""
        if mark is None:
            return None
        with self._mutex:
            self._pass(-1)
            joules, seconds, gaps = self._joules - mark[0], self._seconds - mark[1], self._gaps - mark[2]
        idle = None if self.idle is None else round(self.idle * seconds, 6)
        return None if gaps else Energy(round(joules, 6), round(seconds, 6), idle, self.meter.source)

    def why_unknown(self, hardware: Mapping[str, Any]) -> str:
        """Why an answer has no energy."""
        with self._mutex:
            counted, lack = self.meter.find(), self.meter.lack
        none = "at that time there was no counter" if counted else "this machine has no RAPL, no NVML and no battery"
        return _unmeasured(hardware) or lack or none

    def _pass(self, change: int) -> None:
        joules, seconds = self.meter.used()
        if self.active:
            self._seconds += seconds / self.active
            self._joules += (joules or 0.0) / self.active
            self._gaps += joules is None
        self.active += change

    def _sample(self) -> None:
        while not threading.Event().wait(SAMPLING):
            with self._mutex:
                if self.active:
                    self._pass(0)


MACHINE = EnergyShares(Meter())
"""All requests of this process."""


def _unmeasured(hardware: Mapping[str, Any]) -> str:
    """Why the counters of this machine do not count for a request, if so."""
    if on_worker():
        return "several processes answer (runner: ray), which share the counters"
    if hardware.keys() & {"emulated", "emulate"}:
        return "the speed of another machine is emulated"
    # At a loopback address, too: the other end of a tunnel, or of ``specdec link``, may be anywhere.
    server = hardware.get("server")
    return f"{server}, which this job did not start, may be on another machine" if server else ""
