"""Load of the machine during a test case: processor time of other programs, frequency, temperature, throttling.

Times under load say little about a model. Shares are fractions of the time of all processors.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_OTHERS = 0.10
"""Maximum share of other programs (0.01 to 0.03 on an idle machine): times grow by as much."""
MAX_STEAL = 0.05
"""Maximum share that a hypervisor gives to other guests."""
LEAST_FREQUENCY = 0.8
"""Least frequency relative to the highest, while this run keeps a processor busy."""
SHORTEST = 2.0
"""Minimum seconds of a measurement: a background task dominates a shorter one."""
PAUSE = 5.0
"""Seconds between samples: reading the frequency is slow on machines with many processors."""
SENSORS = ("class/thermal/thermal_zone*/temp", "class/hwmon/hwmon*/temp*_input")
MAX_CELSIUS = 150.0
"""Values above are no temperatures."""
THROTTLED = "devices/system/cpu/cpu*/thermal_throttle/*_throttle_count"
HEAT = "heat"
GPU_LIMITS = {0x4: "power cap", 0x20: HEAT, 0x40: HEAT, 0x80: "power brake"}
"""Throttle reasons of NVML (``nvmlClocksThrottleReasons``)."""


@dataclass(frozen=True)
class Reading:
    """Seconds of processor time since boot: total, busy, stolen, and of this run's processes."""

    total: float
    busy: float
    steal: float
    own: float


class LoadMonitor:
    def __init__(self, sysfs: Path = Path("/sys")) -> None:
        self._sysfs = sysfs

    def begin(self) -> None:
        self._before, self._begun = reading(), time.monotonic()
        self._throttled = numbers(self._sysfs, THROTTLED)
        self._sampled_at = float("-inf")
        self._frequencies: list[float] = []
        self._hottest: list[float] = []
        self._gpu: set[str] = set()
        self.sample()

    def sample(self) -> None:
        """Read frequency, temperature and throttle reasons of GPUs, at most every ``PAUSE`` seconds."""
        now = time.monotonic()
        if now - self._sampled_at >= PAUSE:
            self._sampled_at = now
            self._frequencies += [found] if (found := frequency()) is not None else []
            celsius = [thousandths / 1000 for thousandths in numbers(self._sysfs, *SENSORS).values()]
            self._hottest += [max(possible)] if (possible := [one for one in celsius if 0 < one < MAX_CELSIUS]) else []
            self._gpu |= gpu_limits(self._sysfs)

    def end(self) -> dict[str, Any]:
        """``seconds``; ``own``: number of processors that this run kept busy; ``others``, ``steal``: shares; ``mhz``:
        minimum, mean and maximum frequency of the fastest processor; ``celsius``: the same of the hottest sensor;
        ``throttled``: count; ``gpu``: limits; ``doubt``: why times are doubtful. Unknown values are left out."""
        before, after, seconds = self._before, reading(), time.monotonic() - self._begun
        self._sampled_at = float("-inf")
        self.sample()
        found: dict[str, Any] = {"seconds": round(seconds, 3)}
        if (total := after.total - before.total) > 0 and seconds > 0:
            own, busy = after.own - before.own, after.busy - before.busy
            found["own"] = round(own / seconds, 2)
            found["others"] = round(min(1.0, max(0.0, busy - own) / total), 3)
            found["steal"] = round(max(0.0, after.steal - before.steal) / total, 3)
        for name, seen in (("mhz", self._frequencies), ("celsius", self._hottest)):
            if seen:
                found[name] = [round(min(seen)), round(sum(seen) / len(seen)), round(max(seen))]
        if counts := numbers(self._sysfs, THROTTLED):
            # The maximum: each processor's folder also has the count of its package.
            found["throttled"] = max(max(0, count - self._throttled.get(name, count)) for name, count in counts.items())
        if self._gpu:
            found["gpu"] = sorted(self._gpu)
        return {**found, **({"doubt": words} if (words := doubt(found)) else {})}


def doubt(load: dict[str, Any]) -> str:
    """Why times under this load are doubtful; "" if they are not."""
    if load["seconds"] < SHORTEST:
        return ""
    reasons = []
    if load.get("others", 0.0) >= MAX_OTHERS:
        reasons.append(f"other programs took {load['others']:.0%} of the processors")
    if load.get("steal", 0.0) >= MAX_STEAL:
        reasons.append(f"the hypervisor gave {load['steal']:.0%} of them to other guests")
    low, _, high = load.get("mhz") or (1, 1, 1)
    if low < LEAST_FREQUENCY * high and load.get("own", 0.0) >= 1:
        reasons.append(f"they slowed down from {high} to {low} MHz")
    if times := load.get("throttled"):
        reasons.append(f"processors were throttled by heat (count: {times})")
    if HEAT in load.get("gpu", ()):
        reasons.append("heat slowed a GPU down")
    return ", ".join(reasons)


def summary(doubts: Sequence[str], cases: int) -> str:
    first = " in the first of them" if len(doubts) > 1 else ""
    return (
        f"times are doubtful in {len(doubts)} of {cases} test cases: {doubts[0]}{first} (limits: {MAX_OTHERS:.0%} for "
        f"others, {MAX_STEAL:.0%} for a hypervisor; a model server on this machine is another program). To measure "
        "again, use --fresh"
    )


def reading() -> Reading:
    import psutil

    def total(times: Any, *names: str) -> float:
        return sum(getattr(times, name, 0.0) for name in names)

    times, own, this = psutil.cpu_times(), 0.0, psutil.Process()
    for process in (this, *this.children(recursive=True)):
        with suppress(psutil.Error):
            own += total(process.cpu_times(), "user", "system", "children_user", "children_system")
    # The user time includes that of guests.
    busy, steal = total(times, "user", "nice", "system", "irq", "softirq"), total(times, "steal")
    return Reading(total(times, "idle", "iowait") + busy + steal, busy, steal, own)


def frequency() -> float | None:
    """MHz of the fastest processor (others may be idle); None if unknown."""
    import psutil

    with suppress(OSError, NotImplementedError, AttributeError, RuntimeError):
        # Without frequencies, psutil lacks the function or returns no processors.
        found = [one.current for one in psutil.cpu_freq(percpu=True) or () if one and one.current]
        return max(found) if found else None
    return None


def numbers(sysfs: Path, *patterns: str) -> dict[str, int]:
    """The numbers in the readable files that match one of ``patterns``."""
    found = {}
    for file in (file for pattern in patterns for file in sysfs.glob(pattern)):
        with suppress(OSError, ValueError):
            found[str(file)] = int(file.read_text())
    return found


def gpu_limits(sysfs: Path) -> set[str]:
    """Current throttle reasons of NVIDIA GPUs; empty without NVML."""
    found = set[str]()
    if not (sysfs / "module/nvidia").exists():
        return found
    with suppress(Exception):  # NVML's errors have classes of their own
        import pynvml

        pynvml.nvmlInit()
        for index in range(pynvml.nvmlDeviceGetCount()):
            bits = pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(pynvml.nvmlDeviceGetHandleByIndex(index))
            found |= {words for bit, words in GPU_LIMITS.items() if bits & bit}
    return found
