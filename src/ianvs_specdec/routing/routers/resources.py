"""ResourceRouter: while the edge is short of resources, queries go to the cloud."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from ianvs_specdec.common.errors import UserError, optional_import, warn_once
from ianvs_specdec.routing.routers.base import Decision
from ianvs_specdec.routing.routers.constrained import PRIVATE, AnyRouter, ConstrainedRouter, overrule

log = logging.getLogger(__name__)

Percent = Annotated[float, Field(ge=0, le=100)]

SensorReading = Mapping[str, float | None]
"""Sensor -> its value in the unit of its limit. Missing sensors are left out; a battery that is charging is None."""


@dataclass(frozen=True)
class Limit:
    """``above``: whether readings above it break it; ``back``: distance from a broken limit at which it holds again."""

    sensor: str
    words: str
    above: bool
    back: float

    def broken(self, value: float, limit: float, already: bool) -> bool:
        needed = self.back if already else 0.0
        return value > limit - needed if self.above else value < limit + needed


LIMITS = {
    "max_cpu": Limit("cpu", "CPU in use", True, 10.0),
    "max_memory": Limit("memory", "memory in use", True, 5.0),
    "min_battery": Limit("battery", "battery left", False, 5.0),
    "max_temperature": Limit("temperature", "temperature", True, 5.0),
}


@dataclass
class _Latest:
    broken: Mapping[str, float] = field(default_factory=dict)
    until: float = -math.inf


class ResourceRouter(ConstrainedRouter):
    """The router inside decides while this machine, the edge, keeps to all limits: ``max_cpu``, ``max_memory``,
    ``min_battery`` in %, ``max_temperature`` in degrees Celsius, of the hottest sensor; with hysteresis (``LIMITS``).

    Sensors are read at most every ``interval`` seconds. What the machine has no sensor for is not limited, with one
    warning, or, with ``required``, is an error. ``reader`` replaces psutil.
    """

    def __init__(
        self,
        router: AnyRouter = "RandomRouter",
        max_cpu: Percent | None = None,
        max_memory: Percent | None = None,
        min_battery: Percent | None = None,
        max_temperature: Annotated[float, Field(ge=0, le=200)] | None = None,
        interval: Annotated[float, Field(ge=0, le=3600)] = 1.0,
        required: bool = False,
        *,
        reader: Callable[[], SensorReading] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().check_hyperparameters(locals())
        super().__init__(router)
        limits = dict(zip(LIMITS, (max_cpu, max_memory, min_battery, max_temperature), strict=True))
        self._limits = {name: float(limit) for name, limit in limits.items() if limit is not None}
        self._interval, self._required, self._clock = float(interval), required, clock
        self._read = reader or _psutil()
        # Copies of the router share it.
        self._latest = _Latest()
        self._mutex = threading.Lock()
        self._refresh()

    @classmethod
    def check_hyperparameters(cls, hyperparameters: Mapping[str, Any]) -> None:
        super().check_hyperparameters(hyperparameters)
        _psutil()

    @classmethod
    def check_together(cls, given: Mapping[str, Any]) -> None:
        if all(given[name] is None for name in LIMITS):
            raise UserError(f"ResourceRouter needs a limit: {', '.join(LIMITS)}", key="max_cpu")

    def decide(self, data: Any) -> Decision:
        decision = self.ask(data)
        with self._mutex:
            if self._clock() >= self._latest.until:
                self._refresh()
            short = dict(self._latest.broken)
        if not short or decision.hard or PRIVATE in decision.details:
            return decision
        words = [limit.words for limit in LIMITS.values() if limit.sensor in short]
        return overrule(decision, True, f"resources: {', '.join(words)}", resources=short)

    def _refresh(self) -> None:
        reading = self._read()
        self._latest.until = self._clock() + self._interval
        broken = {}
        for name, limit in self._limits.items():
            sensor = LIMITS[name].sensor
            value = reading.get(sensor)
            if sensor not in reading or (value is not None and not math.isfinite(value)):
                self._missing(name)
            elif value is not None and LIMITS[name].broken(value, limit, sensor in self._latest.broken):
                broken[sensor] = round(value, 1)
        self._latest.broken = broken

    def _missing(self, name: str) -> None:
        message = f"this machine has no sensor for {name} ({LIMITS[name].words})"
        if self._required:
            raise UserError(f"{message}: leave {name} out, or set required to false", key=name)
        warn_once(f"{message}: it is not limited")


def _psutil() -> Callable[[], SensorReading]:
    """Reads what psutil knows on this machine. Raises UserError if it is not installed."""
    with optional_import():
        import psutil

    # The share of processor time is that since the call before; the first one has none.
    psutil.cpu_percent(interval=None)

    def read() -> SensorReading:
        reading: dict[str, float | None] = {
            "cpu": psutil.cpu_percent(interval=None),
            "memory": psutil.virtual_memory().percent,
        }
        battery = psutil.sensors_battery() if hasattr(psutil, "sensors_battery") else None
        if battery is not None:
            reading["battery"] = None if battery.power_plugged else float(battery.percent)
        sensors = psutil.sensors_temperatures() if hasattr(psutil, "sensors_temperatures") else {}
        temperatures = [entry.current for entries in sensors.values() for entry in entries if entry.current is not None]
        if temperatures:
            reading["temperature"] = max(temperatures)
        return reading

    return read
