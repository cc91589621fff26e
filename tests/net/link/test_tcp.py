"""What TCP makes of a path, on a clock that is only counted."""

from __future__ import annotations

import itertools
import math

import pytest

from ianvs_specdec.net.link import Path
from ianvs_specdec.net.link.line import HEADERS, INITIAL_WINDOW, SEGMENT, Line
from ianvs_specdec.net.link.outages import Outages, Schedule
from ianvs_specdec.net.link.record import Direction
from ianvs_specdec.net.link.tcp import LEAST_VARIANCE, Sender

SMALL = 40


class Sending:
    """A sender whose time is set by hand."""

    def __init__(self, path: Path, name: str = "0 up") -> None:
        self.counts = Direction()
        self.line = Line(None, path.up, path.queue)  # type: ignore[arg-type]
        self.sender = Sender(path, self.line, Outages(path.outage, path.seed, 0.0), name, self.counts)

    def bulk(self, seconds: float) -> float:
        """Bytes a second where there is always something to send, without the first quarter and its slow start."""
        now, before = 0.0, 0
        while now < seconds:
            if room := self.sender.room(now):
                self.sender.send(now, min(room, self.line.piece))
            else:
                now = max(self.sender.opens(), math.nextafter(now, math.inf))
            before = before if now > seconds / 4 else self.counts.bytes
        return (self.counts.bytes - before) / (seconds * 3 / 4)


def small(path: Path, count: int, gap: float) -> list[float]:
    """How long each of ``count`` small messages takes, ``gap`` seconds after each other, in the order of TCP."""
    sending, due = Sending(path), 0.0
    packets = []
    for number in range(count):
        sending.sender.room(number * gap)
        packets += sending.sender.send(number * gap, SMALL)
    took = []
    for packet in packets:
        due = max(due, packet.arrival)
        took.append(due - packet.sent)
    return took


def test_a_message_takes_the_delay_and_its_transmission() -> None:
    (packet,) = Sending(Path(delay=0.025, up=1e6)).sender.send(1.0, SMALL)
    assert packet.arrival == pytest.approx(1.0 + (SMALL + HEADERS) * 8 / 1e6 + 0.025)


def test_a_first_window_passes_at_once_however_short_the_queue() -> None:
    line = Sending(Path(up=1e6, queue=0.0)).line
    for _ in range(INITIAL_WINDOW):
        assert line.admits(0.0, lambda: None)
        line.take(0.0, SEGMENT, 1)


def test_jitter_stays_in_its_bounds_and_keeps_the_order() -> None:
    sending = Sending(Path(delay=0.025, jitter=0.02))
    packets = [sending.sender.send(number * 0.012, SMALL)[0] for number in range(500)]
    took = [packet.arrival - packet.sent for packet in packets]
    assert min(took) >= 0.005
    assert max(took) <= 0.045
    assert max(took) - min(took) > 0.03
    assert all(first.arrival <= then.arrival for first, then in itertools.pairwise(packets))


def test_a_window_opens_by_what_has_arrived() -> None:
    """10 segments, then 20, then 40: a slow start (RFC 5681, 6928)."""
    sending, sent = Sending(Path(delay=0.05)), []
    for number in range(3):
        now, burst = number * 0.1, 0
        while room := sending.sender.room(now + 1e-6):
            sending.sender.send(now, room)
            burst += room
        sent.append(burst // SEGMENT)
    assert sent == [10, 20, 40]


def test_a_window_counts_segments_however_small() -> None:
    sending, count = Sending(Path(delay=0.05)), 0
    while sending.sender.room(0.0):
        sending.sender.send(0.0, SMALL)
        count += 1
    assert count == 10


def test_after_a_timeout_the_window_opens_again_for_small_segments_too() -> None:
    sending, sent = Sending(Path(delay=0.05, outage=Schedule(0.1, after=10.0))), []
    sending.sender.send(10.0, SMALL)
    for now in (20.0, 20.11, 20.22):
        count = 0
        while sending.sender.room(now):
            sending.sender.send(now, SMALL)
            count += 1
        sent.append(count)
    # Twice as many up to half of the window before, then one more each round trip.
    assert sent == [2, 4, 5]


def test_after_a_pause_the_window_is_the_first_one_again() -> None:
    sending = Sending(Path(delay=0.05))
    sending.bulk(1.0)
    assert sending.sender.room(10.0) == 10 * SEGMENT


@pytest.mark.parametrize(("delay", "loss"), [(0.005, 0.01), (0.05, 0.001), (0.02, 0.01)])
def test_loss_bounds_the_throughput_as_mathis_says(delay: float, loss: float) -> None:
    formula = SEGMENT / (2 * delay) * math.sqrt(1.5 / loss)
    assert Sending(Path(delay=delay, loss=loss, seed=1)).bulk(200.0) == pytest.approx(formula, rel=0.3)


def test_a_lone_lost_segment_waits_for_the_timeout() -> None:
    took = small(Path(delay=0.01, loss=0.2, seed=2), 200, gap=5.0)
    late = [one for one in took if one > 0.011]
    assert len(late) > 20
    assert min(late) >= 0.02 + LEAST_VARIANCE
    assert max(late) > 2 * min(late), "none was lost twice"


@pytest.mark.parametrize(
    ("gap", "expected"),
    [
        # The next one leaves after 15 ms; its acknowledgement and the repetition take a round trip and a half.
        (0.015, 0.015 + 0.03),
        # The next one leaves after 2 ms, and is given a quarter of a round trip to have been overtaken.
        (0.002, 0.005 + 0.03),
        # The third one leaves after 3 ms.
        (0.001, 0.003 + 0.03),
    ],
)
def test_segments_that_follow_bring_a_lost_one_a_round_trip_later(gap: float, expected: float) -> None:
    took = small(Path(delay=0.01, loss=0.004, seed=5), 2000, gap)
    late = [one for one in took if one > 0.011]
    assert late
    assert max(late) == pytest.approx(expected, abs=1e-6)


def test_a_repetition_that_is_lost_too_costs_another_round_trip() -> None:
    took = small(Path(delay=0.01, loss=0.1, seed=5), 3000, gap=0.002)
    assert 2 * 0.025 + 0.01 - 1e-6 <= max(took) < LEAST_VARIANCE


def test_what_follows_a_lost_segment_is_held_back_until_that_is_there() -> None:
    sending = Sending(Path(delay=0.01, loss=0.3, seed=1))
    packets = sending.sender.send(0.0, 10 * SEGMENT)
    lost = [packet for packet in packets if packet.lost]
    assert lost
    assert sum(packet.size for packet in packets) == 10 * SEGMENT
    assert min(packet.arrival for packet in lost) > max(packet.arrival for packet in packets if not packet.lost)


def test_the_share_of_lost_segments_is_the_stated_one() -> None:
    sending = Sending(Path(loss=0.05))
    for number in range(20_000):
        sending.sender.send(float(number), SMALL)
    assert sending.counts.segments == 20_000
    assert sending.counts.lost == pytest.approx(1000, rel=0.15)


def test_the_same_seed_loses_the_same_segments_whatever_the_clock_says() -> None:
    def places(seed: int, gap: float, name: str = "0 up") -> list[int]:
        sending = Sending(Path(delay=0.01, jitter=0.005, loss=0.1, seed=seed), name)
        for number in range(300):
            sending.sender.send(number * gap, SMALL)
        return sending.counts.lost_at

    assert places(1, 1.0) == places(1, 0.001)
    assert places(1, 1.0) != places(2, 1.0)
    assert places(1, 1.0) != places(1, 1.0, "1 up")


def test_tcp_finds_out_at_its_next_timeout_that_an_outage_is_over() -> None:
    path = Path(delay=0.01, outage=Schedule(3.0, after=10.0))
    sending = Sending(path)
    for number in range(50):
        sending.sender.send(number * 0.1, SMALL)
    first, then = (sending.sender.send(moment, SMALL)[0] for moment in (10.5, 10.6))
    # Timeouts of 0.22 s, then 0.44, 0.88, 1.76: at 10.72, 11.16, 12.04 and 13.8.
    assert first.arrival == pytest.approx(10.5 + 15 * 0.22 + 0.01, abs=0.01)
    assert then.arrival == pytest.approx(first.arrival + path.round_trip)
    (after,) = sending.sender.send(13.2, SMALL)
    assert not after.lost


def test_full_segments_take_the_bandwidth_less_their_headers() -> None:
    sending = Sending(Path(delay=0.001, up=10e6))
    now = 0.0
    while now < 10:
        now = max(now, sending.sender.send(now, SEGMENT)[0].arrival - 0.001)
    assert sending.counts.bytes * 8 / now == pytest.approx(10e6 * SEGMENT / (SEGMENT + HEADERS), rel=0.01)
