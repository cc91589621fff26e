"""Energy meters of this machine: RAPL for processors and memory, NVML for NVIDIA GPUs, else the battery.

RAPL (Documentation/power/powercap of the Linux kernel): a package includes its sub-zones ``core`` and ``uncore``, and
``psys`` includes the packages; ``dram`` is a sub-zone of a package, but not included in it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from ianvs_specdec.common.errors import optional_import

MAX_WATTS = 2_000.0
"""Maximum of one counter. A higher reading means that it was reset, as by a suspend, or is broken."""
LAG = 1.0
"""Maximum delay of a counter in seconds. RAPL counts each millisecond, NVML 10 times a second."""


class Counter:
    """An energy counter. ``joules`` reads its total, which wraps around at ``full`` joules."""

    def __init__(self, name: str, joules: Callable[[], float], full: float = 0.0) -> None:
        self.name, self._joules, self._full, self._last = name, joules, full, joules()

    def used(self) -> float:
        """Joules since the previous call, or since the start."""
        now = self._joules()
        used, self._last = now - self._last, now
        return used + self._full if used < 0 else used


class Power:
    """A power meter. ``watts`` is read at each call; the energy between two calls assumes the mean of both."""

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
    """The meters of this machine. ``source``: their names; ``lack``: why they cannot be read. Not thread-safe."""

    def __init__(self, sysfs: Path = Path("/sys")) -> None:
        self._sysfs = sysfs
        self._sources: list[Source] | None = None
        self._broken = False
        self._since = 0.0
        self.source = self.lack = ""

    def find(self) -> bool:
        """Find the meters, on the first call; returns whether there are any. If one cannot be read, the sum would be
        too small: then only the battery, which supplies all of them, is used."""
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
        """Joules and seconds since the previous call; None instead of joules if a meter failed now or then."""
        now = time.perf_counter()
        seconds, self._since = now - self._since, now
        broken, self._broken, joules = self._broken, False, 0.0
        for source in self._sources or ():
            try:
                used = source.used()
                if not 0 <= used <= MAX_WATTS * (seconds + LAG):
                    raise ValueError(f"{used:g} J in {seconds:g} s are impossible")
                joules += used
            except Exception as error:  # drivers have their own; a failed reading must not fail the answer
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
    """Batteries of mice and other devices have the same type, but report neither power nor current."""
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
    """Some drivers report a discharge as negative."""
    if (power := battery / "power_now").exists():
        return abs(int(_text(power))) / 1e6
    return abs(int(_text(battery / "voltage_now")) * int(_text(battery / "current_now"))) / 1e12


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace").strip()
