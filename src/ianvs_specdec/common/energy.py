"""The energy that this machine uses, by its own counters: RAPL of processors and memory, NVML of NVIDIA's GPUs, and
where they cannot be read, the battery.

RAPL (Documentation/power/powercap of the Linux kernel): a package has its sub-zones ``core`` and ``uncore`` in it, and
``psys`` has the packages in it; ``dram`` is a sub-zone, but no part of a package.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from ianvs_specdec.common.errors import optional_import

MOST_WATTS = 2_000.0
"""Of one counter. One that seems to have used more was reset, as by a suspend, or is broken."""
LAG = 1.0
"""Seconds by which a counter may be behind. RAPL counts each millisecond, NVML 10 times a second."""


class Counter:
    """``joules`` reads what has been used so far, up to ``full`` joules, where it begins anew."""

    def __init__(self, name: str, joules: Callable[[], float], full: float = 0.0) -> None:
        self.name, self._joules, self._full, self._last = name, joules, full, joules()

    def used(self) -> float:
        """Joules since the call before, or since the beginning."""
        now = self._joules()
        used, self._last = now - self._last, now
        return used + self._full if used < 0 else used


class Power:
    """``watts`` is read at each call; between two readings the mean of both counts."""

    def __init__(self, name: str, watts: Callable[[], float]) -> None:
        self.name, self._watts = name, watts
        self._last = time.perf_counter(), watts()

    def used(self) -> float:
        """As ``Counter.used``."""
        then, before = self._last
        now, watts = self._last = time.perf_counter(), self._watts()
        return (now - then) * (before + watts) / 2


Source = Counter | Power


class Meter:
    """The counters of this machine. ``source``: their names; ``lack``: why they cannot be read. Not thread-safe."""

    def __init__(self, sysfs: Path = Path("/sys")) -> None:
        self._sysfs = sysfs
        self._sources: list[Source] | None = None
        self._broken = False
        self._since = 0.0
        self.source = self.lack = ""

    def find(self) -> bool:
        """Look for the counters, once; whether there are any. A sum without one of them would be too small: where one
        cannot be read, only the battery, which has all of it in it, can take their place."""
        if self._sources is None:
            self._sources, lacks = [], []
            for counters in ((_rapl, _gpus), (_battery,)):
                try:
                    self._sources = self._sources or [one for look in counters for one in look(self._sysfs)]
                except Exception as error:
                    lacks.append(_words(error))
            self.lack = "; ".join(lacks)
            self.source = ", ".join(dict.fromkeys(source.name for source in self._sources))
        return bool(self._sources)

    def used(self) -> tuple[float | None, float]:
        """Joules and seconds since the call before; None where a counter cannot be read, or could not then."""
        now = time.perf_counter()
        seconds, self._since = now - self._since, now
        broken, self._broken, joules = self._broken, False, 0.0
        for source in self._sources or ():
            try:
                used = source.used()
                if not 0 <= used <= MOST_WATTS * (seconds + LAG):
                    raise ValueError(f"{used:g} J in {seconds:g} s are impossible")
                joules += used
            except Exception as error:  # drivers have their own, and no answer fails for want of a figure
                self._broken, self.lack = True, f"{source.name}: {_words(error)}"
        return (None if broken or self._broken else joules), seconds


def _words(error: Exception) -> str:
    if isinstance(error, PermissionError) and "intel-rapl" in str(error.filename):
        files = Path(error.filename).parent.parent / "intel-rapl*" / "energy_uj"
        return f"no permission to read {error.filename}: sudo chown $USER {files}"
    return str(error)


def _rapl(sysfs: Path) -> Iterable[Source]:
    for zone in sorted((sysfs / "class/powercap").glob("intel-rapl:*")):
        if (name := _text(zone / "name")).startswith(("package", "dram")):
            full = _joules(zone / "max_energy_range_uj")
            yield Counter(f"RAPL {name}", partial(_joules, zone / "energy_uj"), full)


def _joules(file: Path) -> float:
    return int(_text(file)) / 1e6


def _gpus(sysfs: Path) -> Iterable[Source]:
    if not (sysfs / "module/nvidia").exists():
        return
    with optional_import():
        import pynvml as nvml

    nvml.nvmlInit()
    for index in range(nvml.nvmlDeviceGetCount()):
        yield _gpu(nvml, f"NVML GPU {index}", nvml.nvmlDeviceGetHandleByIndex(index))


def _gpu(nvml: Any, name: str, handle: Any) -> Source:
    try:
        return Counter(name, lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3)
    except nvml.NVMLError_NotSupported:  # before Volta
        return Power(name, lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1e3)


def _battery(sysfs: Path) -> Iterable[Source]:
    """Batteries of mice and the like are of the same type, but report neither power nor current."""
    supplies = sorted((sysfs / "class/power_supply").glob("*"))
    known = [supply for supply in supplies if (supply / "power_now").exists() or (supply / "current_now").exists()]
    batteries = [supply for supply in known if _text(supply / "type") == "Battery"]
    if batteries:
        yield Power("battery", partial(_discharge, batteries))


def _discharge(batteries: list[Path]) -> float:
    watts = [_watts(battery) for battery in batteries if _text(battery / "status") == "Discharging"]
    if not watts:
        raise ValueError("the battery is not discharging")
    return sum(watts)


def _watts(battery: Path) -> float:
    """Some drivers give what flows out a negative sign."""
    if (power := battery / "power_now").exists():
        return abs(int(_text(power))) / 1e6
    return abs(int(_text(battery / "voltage_now")) * int(_text(battery / "current_now"))) / 1e12


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace").strip()
