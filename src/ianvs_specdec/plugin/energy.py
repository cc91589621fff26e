"""Energy of answers: overlapping requests share the energy of this machine equally."""

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
"""Seconds between samples during a request: batteries and GPUs before Volta report power, not energy, and AMD's
counters wrap after 65,532 J."""
Mark = tuple[float, float, int]
"""Joules and seconds of one request since the start of the process, and the number of failed readings."""


class EnergyShares:
    """Each of ``n`` requests in progress gets 1/n of the machine's energy. ``idle``: idle power in W. Thread-safe."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self.idle: float | None = None
        self.active = self._gaps = 0
        self._joules = self._seconds = 0.0
        self._mutex = threading.Lock()
        self._sampler = threading.Thread(target=self._sample, daemon=True)

    def measure_idle(self) -> None:
        """Measure the idle power once, before anything computes."""
        if self.idle is None and not self.active and (mark := self.begin({})):
            time.sleep(IDLE_SECONDS)
            if used := self.end(mark):
                self.idle = used.joules / used.seconds

    def begin(self, hardware: Mapping[str, Any]) -> Mark | None:
        """Start a request on this ``hardware``; None if its energy cannot be measured."""
        with self._mutex:
            if _unmeasured(hardware) or not self.meter.find():
                return None
            self._pass(+1)
            if self._sampler.ident is None:
                self._sampler.start()
            return self._joules, self._seconds, self._gaps

    def end(self, mark: Mark | None) -> Energy | None:
        """End a request. None if a reading failed."""
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
            available, lack = self.meter.find(), self.meter.lack
        none = "there was no counter at that time" if available else "this machine has no RAPL, no NVML and no battery"
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
    """Why the counters of this machine do not measure a request; "" if they do."""
    if on_worker():
        return "several processes (runner: ray) share the counters"
    if hardware.keys() & {"emulated", "emulate"}:
        return "the speed of another machine is emulated"
    # A loopback address may be a tunnel or ``specdec link``.
    server = hardware.get("server")
    return f"{server}, which this job did not start, may be on another machine" if server else ""
