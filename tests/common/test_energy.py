"""Energy meters, with a recorded /sys tree."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ianvs_specdec.common import energy
from ianvs_specdec.common.energy import Meter

ZONES = {
    "intel-rapl:0": ("package-0", 100_000_000),
    "intel-rapl:0:0": ("core", 60_000_000),
    "intel-rapl:0:1": ("uncore", 5_000_000),
    "intel-rapl:0:2": ("dram", 20_000_000),
    "intel-rapl:1": ("package-1", 262_000_000_000),
    "intel-rapl:2": ("psys", 500_000_000),
    "intel-rapl-mmio:0": ("package-0", 100_000_000),
}
FULL = 262_143_328_850


def files(folder: Path, **texts: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(f"{text}\n")


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    for zone, (name, used) in ZONES.items():
        files(tmp_path / "class/powercap" / zone, name=name, energy_uj=used, max_energy_range_uj=FULL)
    return tmp_path


def count(sysfs: Path, **used: object) -> None:
    """Set counters; ``p0`` and ``p1`` are packages, ``dram`` and ``core`` sub-zones of the first."""
    zones = {"p0": "intel-rapl:0", "p1": "intel-rapl:1", "dram": "intel-rapl:0:2", "core": "intel-rapl:0:0"}
    for name, text in used.items():
        files(sysfs / "class/powercap" / zones[name], energy_uj=text)


def battery(sysfs: Path, name: str = "BAT0", **texts: object) -> None:
    files(sysfs / "class/power_supply" / name, **{"type": "Battery", "status": "Discharging", **texts})


def begun(sysfs: Path) -> Meter:
    meter = Meter(sysfs)
    assert meter.find(), meter.lack
    meter.used()
    return meter


def test_packages_and_dram_are_counted_once(sysfs: Path) -> None:
    battery(sysfs, power_now=90_000_000)
    meter = begun(sysfs)
    assert (meter.source, meter.lack) == ("RAPL package-0, RAPL dram, RAPL package-1", "")
    count(sysfs, p0=107_000_000, core=66_000_000, dram=21_500_000, p1=262_002_000_000)
    files(sysfs / "class/powercap/intel-rapl:2", energy_uj=600_000_000)
    assert meter.used()[0] == pytest.approx(7 + 1.5 + 2)
    assert meter.used()[0] == 0.0, "the battery is not added"


def test_a_counter_that_wraps_around(sysfs: Path) -> None:
    meter = begun(sysfs)
    count(sysfs, p1=5_000_000)
    assert meter.used()[0] == pytest.approx(FULL / 1e6 - 262_000 + 5)


@pytest.mark.parametrize("text", ["", "-1000", "0", "9" * 5000, "9" * 30])
def test_invalid_readings_are_unknown(sysfs: Path, text: str) -> None:
    meter = begun(sysfs)
    count(sysfs, p0=text)
    assert meter.used()[0] is None, "reset without wrapping around, or not a number"
    assert meter.lack.startswith("RAPL package-0: ")
    count(sysfs, p0=101_000_000)
    assert meter.used()[0] is None, "its energy since the last valid reading belongs to no interval"
    meter.used()
    count(sysfs, p0=104_000_000)
    assert meter.used()[0] == pytest.approx(3)


def test_a_missing_counter_is_unknown(sysfs: Path) -> None:
    meter = begun(sysfs)
    (sysfs / "class/powercap/intel-rapl:0:2/energy_uj").unlink()
    assert [meter.used()[0] for _ in range(3)] == [None] * 3
    assert "RAPL dram: " in meter.lack
    assert "intel-rapl:0:2/energy_uj" in meter.lack


def test_a_missing_permission_has_a_remedy(sysfs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_text = Path.read_text

    def refuse(path: Path, *arguments: str, **options: str) -> str:
        if path.name == "energy_uj":
            raise PermissionError(13, "Permission denied", str(path))
        return read_text(path, *arguments, **options)

    monkeypatch.setattr(Path, "read_text", refuse)
    meter = Meter(sysfs)
    folder = sysfs / "class/powercap"
    assert not meter.find()
    assert meter.lack == (
        f"no permission to read {folder}/intel-rapl:0/energy_uj: sudo chown $USER {folder}/intel-rapl*/energy_uj"
    )
    battery(sysfs, power_now=9_000_000)
    assert begun(sysfs).source == "battery"


@pytest.mark.parametrize(
    "texts",
    [{"power_now": 12_000_000}, {"current_now": -1_000_000, "voltage_now": 12_000_000}],
    ids=["power", "product"],
)
def test_a_battery_measures_its_discharge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: dict[str, int]
) -> None:
    now = [0.0]
    monkeypatch.setattr(energy.time, "perf_counter", lambda: now[0])
    battery(tmp_path, **texts)
    battery(tmp_path, "BAT1", status="Full", power_now=0)
    battery(tmp_path, "hidpp_battery_0", scope="Device", capacity=80)
    meter = begun(tmp_path)
    now[0] += 2.0
    assert meter.used() == (pytest.approx(24.0), 2.0)
    battery(tmp_path, status="Charging")
    assert meter.used()[0] is None
    assert meter.lack == "battery: the battery is not discharging"


def test_a_machine_without_meters(tmp_path: Path) -> None:
    meter = Meter(tmp_path)
    assert not meter.find()
    assert meter.source == ""


class NVMLError(Exception):
    pass


class NVMLError_NotSupported(NVMLError):
    pass


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Two GPUs, the second of which does not count its energy."""
    (tmp_path / "module/nvidia").mkdir(parents=True)
    nvml = SimpleNamespace(NVMLError=NVMLError, NVMLError_NotSupported=NVMLError_NotSupported, used=5_000, power=70_000)

    def total(handle: int) -> int:
        if handle == 1:
            raise NVMLError_NotSupported("Not Supported")
        return nvml.used

    nvml.nvmlInit, nvml.nvmlDeviceGetCount = lambda: None, lambda: 2
    nvml.nvmlDeviceGetHandleByIndex = lambda index: index
    nvml.nvmlDeviceGetTotalEnergyConsumption = total
    nvml.nvmlDeviceGetPowerUsage = lambda handle: nvml.power
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    return nvml


def test_gpus_count_energy_or_sample_power(tmp_path: Path, gpus: SimpleNamespace) -> None:
    meter = begun(tmp_path)
    assert meter.source == "NVML GPU 0, NVML GPU 1"
    gpus.used += 3_000
    joules, seconds = meter.used()
    assert joules == pytest.approx(3.0 + 70.0 * seconds, abs=1.0)
    gpus.nvmlDeviceGetPowerUsage = lambda handle: (_ for _ in ()).throw(NVMLError("GPU is lost"))
    assert meter.used()[0] is None
    assert meter.lack == "NVML GPU 1: GPU is lost"


def test_without_nvml_nothing_is_measured(sysfs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (sysfs / "module/nvidia").mkdir(parents=True)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    meter = Meter(sysfs)
    assert not meter.find()
    assert meter.source == ""
    assert "pynvml is not installed: pip install 'nvidia-ml-py" in meter.lack
