"""What else the machine did while a test case ran, and what the modules tell of themselves."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from core.storymanager import load
from core.storymanager.load import LoadMonitor, Reading, doubt
from tests.host.host_job import EDGE, Job

DETAILED = (
    EDGE
    + """
    def environment_details(self):
        return {"target": "own engine", "threads": 2}
"""
)
REPLAYING = EDGE.replace(
    "return answer(self.tag, data)",
    'return {**answer(self.tag, data), "replayed": self.seen <= int(os.environ["REPLAYED"])}',
)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that have passed; each look at the clock adds one."""
    now = [0.0]

    def monotonic() -> float:
        now[0] += 1.0
        return now[0]

    monkeypatch.setattr(load.time, "monotonic", monotonic)
    return now


def measured(monkeypatch: pytest.MonkeyPatch, *, own: float, busy: float, steal: float = 0.0) -> None:
    """Readings on two processors: what is done in each second between the first and every later one."""
    now = [0]

    def reading() -> Reading:
        now[0] += 1
        passed = 10.0 if now[0] % 2 == 0 else 0.0
        return Reading(2 * passed, busy * passed, steal * passed, own * passed)

    monkeypatch.setattr(load, "reading", reading)
    monkeypatch.setattr(load, "frequency", lambda: None)


def loads(job: Job) -> Any:
    return json.loads((job.case_folder() / "environment.json").read_text(encoding="utf-8"))["load"]


def test_shares_are_those_of_all_processors(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    measured(monkeypatch, own=1.0, busy=1.6, steal=0.2)
    frequencies = iter([3000.0, 2000.0, 2500.0])
    monkeypatch.setattr(load, "frequency", lambda: next(frequencies))
    monitor = LoadMonitor()
    monitor.begin()
    clock[0] += 6
    monitor.sample()
    clock[0] = 11
    found = monitor.end()
    assert (found["others"], found["steal"]) == (0.3, 0.1)
    assert found["mhz"] == [2000, 2500, 3000]
    assert found["doubt"].startswith("other programs took 30% of the processors, the hypervisor gave 10%")


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"others": 0.099, "steal": 0.049, "gpu": ["power cap"], "throttled": 0}, ""),
        (
            {"others": 0.1, "steal": 0.05, "own": 1.0, "mhz": [1500, 2500, 3000]},
            "other programs took 10% of the processors, the hypervisor gave 5% of them to other guests, they slowed "
            "down from 3000 to 1500 MHz",
        ),
        ({"own": 0.1, "mhz": [1500, 2500, 3000]}, ""),
        ({"throttled": 3}, "processors were throttled by heat (count: 3)"),
        ({"gpu": ["heat", "power cap"]}, "heat slowed a GPU down"),
        ({}, ""),
    ],
)
def test_what_makes_times_doubtful(told: dict[str, Any], words: str) -> None:
    assert doubt({"seconds": 60.0, **told}) == words
    assert doubt({"seconds": 1.0, **told}) == "", "too short to tell"


def test_temperature_and_throttling_are_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    measured(monkeypatch, own=1.0, busy=1.0)
    nvml = SimpleNamespace(nvmlInit=lambda: None, nvmlDeviceGetCount=lambda: 1)
    nvml.nvmlDeviceGetHandleByIndex, nvml.nvmlDeviceGetCurrentClocksThrottleReasons = int, lambda handle: 0x44 | 0x1
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    throttle = [tmp_path / f"devices/system/cpu/cpu{number}/thermal_throttle" for number in (0, 1)]
    sensors = [tmp_path / "class/thermal/thermal_zone0", tmp_path / "class/hwmon/hwmon3"]
    for folder in (*throttle, *sensors, tmp_path / "module/nvidia"):
        folder.mkdir(parents=True)

    def write(zone: object, core: object, counts: tuple[object, object]) -> None:
        (sensors[0] / "temp").write_text(f"{zone}\n")
        (sensors[1] / "temp1_input").write_text(f"{core}\n")
        (sensors[1] / "temp2_input").write_text("255000\n")
        for folder, number in zip(throttle, counts, strict=True):
            (folder / "core_throttle_count").write_text(f"{number}\n")
            (folder / "package_throttle_count").write_text("7\n")
            (folder / "core_power_limit_count").write_text("7\n")

    write(41_000, 45_500, (2, 5))
    monitor = LoadMonitor(tmp_path)
    monitor.begin()
    clock[0] += 6
    write("", 91_000, (2, 9))
    monitor.sample()
    write("nan", "-1", (1, "?"))
    (throttle[0] / "package_throttle_count").write_text("9\n")
    (throttle[0] / "core_power_limit_count").write_text("99\n")
    found = monitor.end()
    assert found["celsius"] == [46, 68, 91]
    assert found["throttled"] == 2
    assert found["gpu"] == ["heat", "power cap"]


def test_a_doubt_is_told_with_the_test_case_and_once_at_the_end(
    job: Job, monkeypatch: pytest.MonkeyPatch, clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    measured(monkeypatch, own=1.0, busy=2.0)
    job.hyperparameters(0, tag=["a", "b"])
    assert job.run() == 0
    lines = capsys.readouterr().err.splitlines()
    assert sum("doubtful times: other programs took 50% of the processors" in line for line in lines) == 2
    (line,) = [line for line in lines if "times are doubtful" in line]
    assert line.startswith("times are doubtful in 2 of 2 test cases: other programs took 50%")
    assert "limits: 10% for others" in line
    assert loads(job)[0]["doubt"] == "other programs took 50% of the processors"


def test_a_replay_keeps_the_load_of_its_answers(
    job: Job, monkeypatch: pytest.MonkeyPatch, clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    measured(monkeypatch, own=1.0, busy=1.1)
    job.plugin("algo/edge_model.py", REPLAYING)
    monkeypatch.setenv("REPLAYED", "0")
    assert job.run() == 0
    before = loads(job)
    measured(monkeypatch, own=0.0, busy=2.0)
    monkeypatch.setenv("REPLAYED", "10")
    assert job.run() == 0
    assert loads(job) == before
    assert "doubt" not in capsys.readouterr().err, "no time was taken in this run"
    monkeypatch.setenv("REPLAYED", "4")
    assert job.run() == 0
    assert [told["answers"] for told in loads(job)] == [10, 6]


@pytest.mark.parametrize("text", ["[]", '{"load": 1}', "[" * 100_000])
def test_what_an_earlier_run_has_left_ends_no_run(job: Job, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    job.plugin("algo/edge_model.py", REPLAYING)
    monkeypatch.setenv("REPLAYED", "4")
    assert job.run() == 0
    (job.case_folder() / "environment.json").write_text(text, encoding="utf-8")
    assert job.run() == 0
    assert isinstance(loads(job), list)


def test_modules_tell_of_themselves(job: Job) -> None:
    job.plugin("algo/edge_model.py", DETAILED)
    job.plugin("algo/routers.py", (job.folder / "algo/routers.py").read_text().replace(
        "class EdgeOnly:", "class EdgeOnly:\n    def environment_details(self):\n        return 1 / 0"
    ))  # fmt: skip
    assert job.run() == 0
    environment = json.loads((job.case_folder() / "environment.json").read_text(encoding="utf-8"))
    assert environment["modules"] == {
        "edgemodel": {"target": "own engine", "threads": 2},
        "hard_example_mining": {
            "error": "ZeroDivisionError: division by zero (algo/routers.py:7 in environment_details)"
        },
    }
