"""Arrival times and outages, on a counted clock."""

from __future__ import annotations

import itertools

import pytest

from ianvs_specdec.net.link import Path
from ianvs_specdec.net.link.path import NO_OUTAGES, Schedule
from ianvs_specdec.net.link.record import Direction
from ianvs_specdec.net.link.transmission import HEADERS, SEGMENT, Channel, Line, Outages

SMALL = 40


def way(path: Path, name: str = "0 up") -> tuple[Channel, Direction]:
    counts = Direction()
    return Channel(Line(path, path.up, Outages(path.outage, path.seed, 0.0)), name, counts), counts


def took(path: Path, count: int, gap: float, name: str = "0 up") -> list[float]:
    """How long each of ``count`` small messages takes, ``gap`` seconds after each other."""
    sender, _ = way(path, name)
    return [sender.arrival(number * gap, SMALL) - number * gap for number in range(count)]


def test_delay_and_transmission_time() -> None:
    sender, _ = way(Path(delay=0.025, up=1e6))
    assert sender.arrival(1.0, SMALL) == pytest.approx(1.0 + (SMALL + HEADERS) * 8 / 1e6 + 0.025)


def test_jitter_is_bounded_and_keeps_order() -> None:
    sender, _ = way(Path(delay=0.025, jitter=0.02))
    moments = [number * 0.012 for number in range(500)]
    arrivals = [sender.arrival(moment, SMALL) for moment in moments]
    delays = [arrival - moment for arrival, moment in zip(arrivals, moments, strict=True)]
    assert 0.005 <= min(delays) < max(delays) <= 0.045
    assert max(delays) - min(delays) > 0.03
    assert all(first <= then for first, then in itertools.pairwise(arrivals))


def test_loss_costs_a_round_trip() -> None:
    late = [delay for delay in took(Path(delay=0.01, loss=0.2, seed=2), 300, gap=5.0) if delay > 0.011]
    assert {round((delay - 0.01) / 0.02) for delay in late} >= {1, 2}
    assert all((delay - 0.01) / 0.02 == pytest.approx(round((delay - 0.01) / 0.02)) for delay in late)


def test_loss_blocks_later_segments() -> None:
    delays = took(Path(delay=0.01, loss=0.05, seed=5), 500, gap=0.001)
    lost = next(place for place, delay in enumerate(delays) if delay > 0.0295)
    assert delays[lost + 1] == pytest.approx(delays[lost] - 0.001)


def test_share_of_lost_segments() -> None:
    sender, counts = way(Path(loss=0.05))
    for number in range(2_000):
        sender.arrival(float(number), 10 * SEGMENT)
    assert counts.segments == 20_000
    assert counts.lost == pytest.approx(1000, rel=0.15)


def test_losses_depend_on_seed_and_name() -> None:
    def lost(seed: int, gap: float, name: str = "0 up") -> list[int]:
        delays = took(Path(delay=0.01, loss=0.1, seed=seed), 300, gap, name)
        return [place for place, delay in enumerate(delays) if delay > 0.011]

    assert lost(1, 1.0) == lost(1, 2.0)
    assert lost(1, 1.0) != lost(2, 1.0)
    assert lost(1, 1.0) != lost(1, 1.0, "1 up")


def test_outage_delays_data() -> None:
    sender, _ = way(Path(delay=0.01, outage=Schedule(3.0, after=10.0)))
    assert sender.arrival(9.9, SMALL) == pytest.approx(9.91)
    assert [sender.arrival(moment, SMALL) for moment in (10.5, 12.0)] == pytest.approx([13.01, 13.01])
    assert sender.arrival(13.5, SMALL) == pytest.approx(13.51)


@pytest.mark.parametrize("queue", [0.0, 0.1])
def test_bandwidth_includes_headers(queue: float) -> None:
    sender, counts = way(Path(delay=0.001, up=10e6, queue=queue))
    now = 0.0
    while now < 10:
        now = max(now, sender.line.has_room_at())
        sender.arrival(now, SEGMENT)
    assert counts.bytes * 8 / now == pytest.approx(10e6 * SEGMENT / (SEGMENT + HEADERS), rel=0.02)


def test_queue_limit() -> None:
    sender, _ = way(Path(up=8e6, queue=0.1))
    now, longest = 0.0, 0.0
    while now < 2:
        now = max(now, sender.line.has_room_at())
        longest = max(longest, sender.arrival(now, SEGMENT) - now)
    assert longest == pytest.approx(0.1, rel=0.01)


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


def test_outage_after_a_time_comes_once() -> None:
    outages = Outages(Schedule(2, after=5), 0, start=100)
    assert [outages.end_of(moment) for moment in (104, 106, 108, 1e6)] == [None, 107, None, None]
    assert (outages.next_after(0), outages.next_after(105)) == (105, None)


def test_without_a_schedule_only_added_outages_come() -> None:
    outages = Outages(NO_OUTAGES, 0, start=0)
    assert (outages.end_of(5), outages.next_after(0)) == (None, None)
    outages.add(5, 1)
    assert outages.end_of(5.5) == 6


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
