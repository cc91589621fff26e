"""The energy of a model's answers: each one's share of what this machine used where requests overlap."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from ianvs_specdec.common.energy import Meter
from ianvs_specdec.common.types import Energy
from ianvs_specdec.net import LOOPBACK
from ianvs_specdec.records.run import on_worker


class Mark(NamedTuple):
    """What one request alone would have used when another one began, and how often that could not be read."""

    joules: float
    seconds: float
    gaps: int


class EnergyShares:
    """While ``n`` requests are under way on this machine, an ``n``-th of what it uses is each one's. Thread-safe."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self._number = self._gaps = 0
        self._joules = self._seconds = 0.0
        self._mutex = threading.Lock()

    def begin(self, hardware: Mapping[str, Any]) -> Mark | None:
        """A request begins; None where its energy cannot be known. ``hardware`` is what its model runs on."""
        if _elsewhere(hardware) or on_worker():
            return None
        with self._mutex:
            if not self.meter.begin():
                return None
            self._pass(+1)
            return Mark(self._joules, self._seconds, self._gaps)

    def end(self, mark: Mark | None) -> Energy | None:
        """A request ends. None where not all that it used is known."""
        if mark is None:
            return None
        with self._mutex:
            self._pass(-1)
            if self._gaps > mark.gaps:
                return None
            joules, seconds = round(self._joules - mark.joules, 6), round(self._seconds - mark.seconds, 6)
            return Energy(joules, seconds, self.meter.idle, self.meter.source)

    def why_unknown(self, hardware: Mapping[str, Any]) -> str:
        """Why an answer has no energy."""
        if reason := _elsewhere(hardware):
            return reason
        if on_worker():
            return "several processes answer (runner: ray), which share the counters"
        with self._mutex:
            self.meter.find()
            return self.meter.lack or "it was answered when there was no counter: ianvs --fresh asks again"

    def _pass(self, change: int) -> None:
        joules, seconds = self.meter.used()
        if self._number:
            self._seconds += seconds / self._number
            self._joules += (joules or 0.0) / self._number
            self._gaps += joules is None
        self._number += change


MACHINE = EnergyShares(Meter())
"""All requests of this process."""


def _elsewhere(hardware: Mapping[str, Any]) -> str:
    """Which other machine uses the energy; "" where it is this one."""
    if hardware.keys() & {"emulated", "emulate"}:
        return "the speed of another machine is emulated"
    servers = str(hardware.get("server") or LOOPBACK[0]).split(", ")
    others = [server for server in servers if not {server, urlsplit(f"//{server}").hostname} & {*LOOPBACK}]
    return f"{others[0]} is another machine" if others else ""
