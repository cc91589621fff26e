"""When outages are: as scheduled, as drawn from the seed, as called for."""

from __future__ import annotations

import pytest

from ianvs_specdec.net.link.path import NO_OUTAGES, Schedule
from ianvs_specdec.net.link.transmission import Outages

PERIODIC = Schedule(2, period=10)


def test_periodic_outages() -> None:
    outages = Outages(PERIODIC, 0, start=100)
    assert [outages.end_of(moment) for moment in (100, 107.9, 108, 109.9, 110, 118.5)] == [
        None,
        None,
        110,
        110,
        None,
        120,
    ]
    assert outages.next_after(100) == 108
    assert outages.next_after(108) == 118


def test_single_outage() -> None:
    outages = Outages(Schedule(2, after=5), 0, start=100)
    assert [outages.end_of(moment) for moment in (104, 106, 108, 1e6)] == [None, 107, None, None]
    assert (outages.next_after(0), outages.next_after(105)) == (105, None)


def test_random_outages() -> None:
    schedule = Schedule(2, period=10, random=True)
    found = []
    for seed in (1, 1, 2):
        outages = Outages(schedule, seed, start=0)
        outages.end_of(20_000)
        found.append(outages.before(20_000))
    assert found[0] == found[1] != found[2]
    lengths = [end - begin for begin, end in found[0]]
    assert sum(lengths) / len(lengths) == pytest.approx(2, rel=0.15)
    assert len(lengths) == pytest.approx(2000, rel=0.1)


def test_added_outage_is_merged() -> None:
    outages = Outages(PERIODIC, 0, start=0)
    assert outages.end_of(9) == 10
    outages.add(5, 4)
    outages.add(1, 1)
    assert outages.before(12) == [(1, 2), (5, 10)]
    assert [outages.end_of(moment) for moment in (1.5, 3, 6)] == [2, None, 10]


def test_added_outage_without_schedule() -> None:
    outages = Outages(NO_OUTAGES, 0, start=0)
    assert (outages.end_of(5), outages.next_after(0)) == (None, None)
    outages.add(5, 1)
    assert outages.end_of(5.5) == 6
