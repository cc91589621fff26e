"""How busy the machine was while a test case ran: what others took of its processors, and how fast these were.

A time says little about a model where other programs had a part in it. Shares are of the time of all processors.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MOST_OTHERS = 0.10
"""Share of the processors that other programs may take; 0.01 to 0.03 on an idle machine. Times get longer by as much,
and a tenth is more than the usual interval of a time."""
MOST_STEAL = 0.05
"""Share that a hypervisor may give to other guests."""
LEAST_FREQUENCY = 0.8
"""Of the highest frequency seen, while this run kept a processor busy: below, the processor slowed down."""
SHORTEST = 2.0
"""Seconds of a measurement: one background task fills a shorter one."""
PAUSE = 5.0
"""Seconds between two readings of the frequency, which are slow on a machine of many processors."""
SENSORS = ("class/thermal/thermal_zone*/temp", "class/hwmon/hwmon*/temp*_input")
MOST_CELSIUS = 150.0
"""A sensor that reads as more is broken, or is none."""
THROTTLED = "devices/system/cpu/cpu*/thermal_throttle/*_throttle_count"
HEAT = "heat"
GPU_LIMITS = {0x4: "power cap", 0x20: HEAT, 0x40: HEAT, 0x80: "power brake"}
"""NVML's reasons (``nvmlClocksThrottleReasons``) that a GPU's clocks are low although it has work."""


@dataclass(frozen=True)
class Reading:
    """Seconds of processor time since the system began: of all, in use, stolen, and those of this run's processes."""

    total: float
    busy: float
    steal: float
    own: float


class Watch:
    def __init__(self, sysfs: Path = Path("/sys")) -> None:
        self._sysfs = sysfs

    def begin(self) -> None:
        self._before, self._begun = reading(), time.monotonic()
        self._throttled = numbers(self._sysfs, THROTTLED)
        self._looked = float("-inf")
        self._frequencies: list[float] = []
        self._hottest: list[float] = []
        self._gpu: set[str] = set()
        self.look()

    def look(self) -> None:
        """Read frequency, temperature and what slows GPUs down, if that is due."""
        now = time.monotonic()
        if now - self._looked >= PAUSE:
            self._looked = now
            self._frequencies += [found] if (found := frequency()) is not None else []
            celsius = [thousandths / 1000 for thousandths in numbers(self._sysfs, *SENSORS).values()]
            self._hottest += [max(possible)] if (possible := [one for one in celsius if 0 < one < MOST_CELSIUS]) else []
            self._gpu |= gpu_limits(self._sysfs)

    def end(self) -> dict[str, Any]:
        """``seconds``; ``own``: number of processors that this run kept busy; ``others``, ``steal``: shares; ``mhz``:
        lowest, mean and highest frequency of the fastest processor; ``celsius``: the same of the hottest sensor;
        ``throttled``: count; ``gpu``: limits; ``doubt``: why times are doubtful. What is not known is left out."""
        before, after, seconds = self._before, reading(), time.monotonic() - self._begun
        self._looked = float("-inf")
        self.look()
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
            # A package's count is in the folder of each of its processors: the largest, not the sum.
            found["throttled"] = max(max(0, count - self._throttled.get(name, count)) for name, count in counts.items())
        if self._gpu:
            found["gpu"] = sorted(self._gpu)
        return {**found, **({"doubt": words} if (words := doubt(found)) else {})}


def doubt(load: dict[str, Any]) -> str:
    """Why times that were taken under this load are doubtful; empty if they are not."""
    if load["seconds"] < SHORTEST:
        return ""
    reasons = []
    if load.get("others", 0.0) >= MOST_OTHERS:
        reasons.append(f"other programs took {load['others']:.0%} of the processors")
    if load.get("steal", 0.0) >= MOST_STEAL:
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
        f"times are doubtful in {len(doubts)} of {cases} test cases: {doubts[0]}{first} (limits: {MOST_OTHERS:.0%} for "
        f"others, {MOST_STEAL:.0%} for a hypervisor; a model server on this machine is another program). Where there "
        "should be nothing else, run the job again with --fresh"
    )


def reading() -> Reading:
    import psutil

    def total(times: Any, *names: str) -> float:
        return sum(getattr(times, name, 0.0) for name in names)

    times, own, this = psutil.cpu_times(), 0.0, psutil.Process()
    for process in (this, *this.children(recursive=True)):
        with suppress(psutil.Error):
            own += total(process.cpu_times(), "user", "system", "children_user", "children_system")
    # Guests' time is in the user's already.
    busy, steal = total(times, "user", "nice", "system", "irq", "softirq"), total(times, "steal")
    return Reading(total(times, "idle", "iowait") + busy + steal, busy, steal, own)


def frequency() -> float | None:
    """MHz of the processor that runs fastest: others may have nothing to do. None where the system does not tell."""
    import psutil

    with suppress(OSError, NotImplementedError, AttributeError, RuntimeError):
        # Without any frequency psutil has no such function, or no processors in its answer.
        found = [one.current for one in psutil.cpu_freq(percpu=True) or () if one and one.current]
        return max(found) if found else None
    return None


def numbers(sysfs: Path, *patterns: str) -> dict[str, int]:
    """What the files hold that match one of ``patterns``, as far as they can be read."""
    found = {}
    for file in (file for pattern in patterns for file in sysfs.glob(pattern)):
        with suppress(OSError, ValueError):
            found[str(file)] = int(file.read_text())
    return found


def gpu_limits(sysfs: Path) -> set[str]:
    """What slows NVIDIA's GPUs down now; nothing where NVML cannot be asked."""
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
