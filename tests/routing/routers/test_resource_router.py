"""ResourceRouter: limits, hysteresis, missing sensors, intervals."""

from __future__ import annotations

import copy
import logging
import sys
from typing import Any

import pytest

from ianvs_specdec.common.errors import UserError, warn_once
from ianvs_specdec.routing.routers.privacy import PrivacyRouter
from ianvs_specdec.routing.routers.resources import ResourceRouter, SensorReading


class Machine:
    def __init__(self, **reading: float | None) -> None:
        self.reading: dict[str, float | None] = {"cpu": 10.0, "memory": 10.0, "battery": 90.0, "temperature": 40.0}
        self.reading |= reading
        self.now, self.reads = 0.0, 0

    def read(self) -> SensorReading:
        self.reads += 1
        return dict(self.reading)

    def clock(self) -> float:
        return self.now


def router(machine: Machine, **limits: Any) -> ResourceRouter:
    return ResourceRouter("EdgeOnly", **limits, interval=0, reader=machine.read, clock=machine.clock)


@pytest.mark.parametrize(
    ("limit", "sensor", "fine", "short", "nearly", "enough"),
    [
        ({"max_cpu": 80}, "cpu", 80.0, 81.0, 70.1, 70.0),
        ({"max_memory": 80}, "memory", 80.0, 80.5, 75.1, 75.0),
        ({"min_battery": 20}, "battery", 20.0, 19.0, 24.9, 25.0),
        ({"max_temperature": 70}, "temperature", 70.0, 71.0, 65.1, 65.0),
    ],
)
def test_limits_have_hysteresis(
    limit: dict[str, Any], sensor: str, fine: float, short: float, nearly: float, enough: float
) -> None:
    machine = Machine()
    subject = router(machine, **limit)
    decided = []
    for value in (fine, short, fine, nearly, enough, fine):
        machine.reading[sensor] = value
        row = {"query": "What?", "index": 0}
        decided.append(subject(row))
        if decided[-1]:
            assert row["routing"]["reason"].startswith("resources: ")  # type: ignore[index]
            assert row["routing"]["resources"] == {sensor: value}  # type: ignore[index]
    assert decided == [False, True, True, True, False, False]


def test_sensors_are_read_once_an_interval() -> None:
    machine = Machine()
    subject = ResourceRouter("EdgeOnly", max_cpu=80, interval=2.0, reader=machine.read, clock=machine.clock)
    for tenth in range(100):
        machine.now = tenth / 10
        subject("What?")
    assert machine.reads == 5
    machine.now = 10.0
    subject("What?")
    assert machine.reads == 6, "an interval is over when it is over, not later"


def test_copies_share_the_reading() -> None:
    machine = Machine(memory=81.0)
    subject = ResourceRouter("EdgeOnly", max_memory=80, interval=2.0, reader=machine.read, clock=machine.clock)
    machine.now, machine.reading["memory"] = 3.0, 79.0
    assert copy.copy(subject)("What?")
    assert copy.copy(subject)("What?")
    assert machine.reads == 2
    machine.now, machine.reading["memory"] = 6.0, 75.0
    assert not copy.copy(subject)("What?")
    machine.now, machine.reading["memory"] = 9.0, 79.0
    assert not subject("What?"), "what was broken has been mended, as a copy saw"


def test_a_private_query_stays_on_an_overloaded_edge() -> None:
    machine = Machine(memory=99.0)
    subject = ResourceRouter(PrivacyRouter("EdgeOnly"), max_memory=90, reader=machine.read, clock=machine.clock)
    assert not subject("write to ann@example.com")
    assert subject("What?")


def test_a_missing_sensor_is_a_warning_or_an_error(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine(temperature=99.0)
    del machine.reading["battery"]
    warn_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            subject = router(machine, min_battery=20, max_temperature=80)
            assert subject("What?")
            assert subject("What?")
    assert [record.message for record in caplog.records].count(
        "this machine has no sensor for min_battery (battery left): it is not limited"
    ) == 1
    with pytest.raises(UserError, match="no sensor for min_battery") as error:
        router(machine, min_battery=20, required=True)
    assert error.value.key == "min_battery"


def test_psutil_reads_this_machine() -> None:
    pytest.importorskip("psutil", reason="needs the extra resources")
    assert ResourceRouter("EdgeOnly", max_memory=0)("What?")
    assert not ResourceRouter("EdgeOnly", max_memory=100)("What?")


def test_without_psutil_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    for needs in (ResourceRouter.check_hyperparameters, lambda given: ResourceRouter("EdgeOnly", **given)):
        with pytest.raises(UserError, match=r"pip install 'psutil>="):
            needs({"max_cpu": 80})
