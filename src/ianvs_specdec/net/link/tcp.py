"""When the bytes that one end sends reach the other, as TCP would bring them there over a path that delays and loses.

It is a model of a sender, in pieces of data rather than packets; nothing is sent here. What it knows:

- *Window* (RFC 5681): at most ``cwnd`` segments are under way, small or full. It begins with 10 (RFC 6928), doubles
  each round trip up to ``ssthresh``, then grows by one each round trip. After a pause of a retransmission timeout it
  begins again. So the throughput over a path with loss p is that of Mathis et al. (1997), 1.22 * MSS / (RTT * sqrt(p)).
- *Loss told by later segments* (RACK, RFC 8985, which Linux does): a lost segment is sent again when one that was sent
  later is acknowledged and a quarter of a round trip has passed beyond its own round trip, or at the third one as in
  RFC 5681. So it arrives a round trip late or a little more. The window is halved, once for all that was lost in it. A
  repetition that is lost too is told of in the same way.
- *Timeout* (RFC 6298): a lost segment that none follows in time is sent again after SRTT + max(4 RTTVAR, 200 ms), and
  then after twice as long each time. The 200 ms are Linux's; the RFC has 1 s. The window begins anew with one segment.
- *Order*: what arrives after a lost segment is held back until that one is there.
- *Outage*: what leaves in one is lost, and so is every repetition until its end: TCP finds out only at the next timeout
  that a path is back.

What it does not know: loss of acknowledgements (the next one stands for them), loss where a queue overflows (`line.py`
lets the sender wait instead), delayed acknowledgements, tail loss probes (RFC 8985; with one segment under way Linux
sends them no sooner than a timeout), and CUBIC, whose window grows faster than Reno's where the bandwidth times the
round trip is large.
"""

from __future__ import annotations

import math
from collections import deque
from random import Random

from ianvs_specdec.net.link.line import INITIAL_WINDOW, SEGMENT, Line
from ianvs_specdec.net.link.outages import Outages
from ianvs_specdec.net.link.path import Path
from ianvs_specdec.net.link.record import Direction

LARGEST_WINDOW = 6 << 20
"""Bytes: the largest receive window that Linux opens unless told otherwise (tcp_rmem)."""
DUPLICATES = 3
"""Later segments whose arrival tells that one is lost (RFC 5681)."""
REORDERING = 0.25
"""Of a round trip: how long a sender takes fewer of them for reordering (RFC 8985)."""
FIRST_TIMEOUT = 1.0
"""Seconds, for the segments that open a connection (RFC 6298)."""
LEAST_VARIANCE = 0.2
"""Seconds: TCP_RTO_MIN of Linux."""
LONGEST_TIMEOUT = 120.0
"""Seconds: TCP_RTO_MAX of Linux."""
JITTER_HOLDS = 0.01
"""Seconds that one drawn delay holds: about a retransmission of LTE's radio link (HARQ, 8 ms). Were it drawn for each
segment, the order that TCP keeps would turn jitter of dense traffic into delay: each would wait for the slowest."""
MOST_TOLD = 1000
"""Lost segments whose places are kept for the record."""


class Packet:
    """Bytes that arrive together: ``arrival`` by the clock, if nothing sent before holds them back."""

    __slots__ = ("again", "arrival", "followers", "lost", "repeats", "segments", "sent", "size", "told")

    def __init__(self, size: int, segments: int, sent: float, arrival: float, lost: bool = False) -> None:
        self.size, self.segments, self.sent, self.arrival, self.lost = size, segments, sent, arrival, lost
        self.again = 0.0
        """Of a lost one: when it left last."""
        self.repeats = 0
        """How often it must be sent again until it gets through."""
        self.followers = 0
        """Segments that left after that."""
        self.told = False
        """Whether these tell of it before a timeout does."""

    @property
    def weight(self) -> int:
        """Bytes of the window that it takes: a window has room for so many segments, however small (as in Linux)."""
        return self.segments * SEGMENT


def opening(path: Path, outages: Outages, chance: Random, now: float) -> float:
    """When a segment of the handshake that is sent now arrives: it is repeated after 1, 2, 4, ... s (RFC 6298)."""
    timeout = FIRST_TIMEOUT
    while chance.random() < path.loss or outages.end_of(now) is not None:
        now += timeout
        timeout = min(2 * timeout, LONGEST_TIMEOUT)
    return now + path.delay


class Sender:
    """One direction of one connection."""

    def __init__(self, path: Path, line: Line, outages: Outages, name: str, counts: Direction) -> None:
        """``name`` tells its random decisions from those of others with the same seed. It counts in ``counts``."""
        self._path, self._line, self._outages, self._counts = path, line, outages, counts
        self._losses, self._delays = Random(f"loss {path.seed} {name}"), Random(f"jitter {path.seed} {name}")
        self._draw()
        self._drawn, self._drawn_at = path.delay, -math.inf
        self._latest = 0.0
        self._window, self._threshold = float(INITIAL_WINDOW * SEGMENT), float(LARGEST_WINDOW)
        self._flying: deque[Packet] = deque()
        self._holes: list[Packet] = []
        self._awaited: list[Packet] = []
        """Holes that segments sent later can repair."""
        self._in_flight = 0
        self._srtt, self._rttvar = path.round_trip, path.round_trip / 2
        self._last_sent = -math.inf
        self._recovered = -math.inf

    def move(self, path: Path) -> None:
        """What is sent from now on takes the delay of ``path``; a shorter one does not overtake what is under way."""
        self._path = path
        self._drawn, self._drawn_at = path.delay, -math.inf

    @property
    def timeout(self) -> float:
        return min(self._srtt + max(4 * self._rttvar, LEAST_VARIANCE), LONGEST_TIMEOUT)

    def room(self, now: float) -> int:
        """Bytes that may be sent now, whole segments. 0 where not even one may be, while others are under way."""
        self._acknowledge(now)
        if not self._in_flight and now - self._last_sent > self.timeout:
            self._window = min(self._window, float(INITIAL_WINDOW * SEGMENT))
        room = max(0, int(self._window) - self._in_flight) // SEGMENT * SEGMENT
        return room or (0 if self._in_flight else SEGMENT)

    def opens(self) -> float:
        """When the next acknowledgement comes, as far as is known."""
        coming = [hole.arrival for hole in self._holes]
        if self._flying:
            coming.append(self._flying[0].arrival)
        return min(coming) + self._path.delay

    def send(self, now: float, size: int) -> list[Packet]:
        """What becomes of ``size`` bytes that are sent now, in order. 0 bytes are a segment, too, such as the last."""
        packets: list[Packet] = []
        left = size
        while left or not packets:
            lost = not self._clear
            part = min(left, SEGMENT if lost else int(min(left, self._clear * SEGMENT)))
            packets.append(self._packet(now, part, lost))
            left -= part
            if lost:
                self._draw()
            else:
                self._clear -= packets[-1].segments
        self._last_sent = now
        return packets

    def _packet(self, now: float, size: int, lost: bool) -> Packet:
        segments = max(1, math.ceil(size / SEGMENT))
        passed = self._line.take(now, size, segments)
        arrival = passed + self._delay(now)
        if (end := self._outages.end_of(passed)) is not None:
            packet = Packet(size, segments, now, self._after_outage(passed, end), lost=True)
        elif lost:
            packet = self._repeated(size, now, passed)
        else:
            self._latest = max(self._latest, arrival)
            packet = Packet(size, segments, now, self._latest)
            self._measure(packet.arrival + self._path.delay - now)
        if packet.lost:
            # It is transmitted twice.
            self._line.take(now, size, segments)
            self._holes.append(packet)
            self._counts.lost += segments
            if len(self._counts.lost_at) < MOST_TOLD:
                self._counts.lost_at.append(self._counts.bytes)
        else:
            self._tell(passed, segments)
            self._flying.append(packet)
        self._counts.bytes += size
        self._counts.segments += segments
        self._in_flight += packet.weight
        return packet

    def _draw(self) -> None:
        """How many segments get through before the next lost one, and how often that is lost: geometric, both."""
        loss = self._path.loss
        self._clear, self._repeats = math.inf, 1
        if loss:
            self._clear = int(math.log(1 - self._losses.random()) / math.log(1 - loss))
            while self._losses.random() < loss:
                self._repeats += 1

    def _delay(self, now: float) -> float:
        if self._path.jitter and now - self._drawn_at >= JITTER_HOLDS:
            self._drawn_at = now
            self._drawn = self._path.delay + self._path.jitter * self._delays.uniform(-1, 1)
        return self._drawn

    def _repeated(self, size: int, now: float, passed: float) -> Packet:
        """A lost segment, which arrives after a timeout unless others tell of it before."""
        packet = Packet(size, 1, now, 0.0, lost=True)
        packet.again, packet.repeats = passed, self._repeats
        packet.arrival = self._after_timeouts(packet)
        self._awaited.append(packet)
        return packet

    def _after_timeouts(self, hole: Packet) -> float:
        moment, timeout = hole.again, self.timeout
        for _ in range(hole.repeats):
            moment += timeout
            timeout = min(2 * timeout, LONGEST_TIMEOUT)
        return self._open(moment) + self._path.delay

    def _open(self, moment: float) -> float:
        """The first repetition from this moment on that meets no outage."""
        timeout = self.timeout
        while self._outages.end_of(moment) is not None:
            timeout = min(2 * timeout, LONGEST_TIMEOUT)
            moment += timeout
        return moment

    def _after_outage(self, passed: float, end: float) -> float:
        """What was lost in one outage follows the first of it, a round trip after that has got through."""
        through = [hole.arrival for hole in self._holes if hole.arrival - self._path.delay >= end]
        if through:
            return min(through) + self._path.round_trip
        return self._open(passed + self.timeout) + self._path.delay

    def _tell(self, passed: float, segments: int) -> None:
        """Segments that leave now tell the sender of those lost before them."""
        trip = self._path.round_trip
        # Of the others a timeout tells first.
        self._awaited = [hole for hole in self._awaited if passed + trip <= hole.again + self.timeout]
        for hole in self._awaited:
            if passed < hole.again:
                continue
            hole.followers += segments
            patience = 0.0 if hole.followers >= DUPLICATES else trip * REORDERING
            known = self._open(max(passed, hole.again + patience) + trip)
            hole.told = True
            if hole.repeats == 1:
                # What is sent again queues like the rest.
                hole.arrival = min(hole.arrival, known + max(self._path.delay, self._srtt - self._path.delay))
            else:
                hole.again, hole.repeats, hole.followers = known, hole.repeats - 1, 0
                hole.arrival = self._after_timeouts(hole)

    def _measure(self, sample: float) -> None:
        """RFC 6298, with what is known of a segment when it is sent."""
        self._rttvar += (abs(self._srtt - sample) - self._rttvar) / 4
        self._srtt += (sample - self._srtt) / 8

    def _acknowledge(self, now: float) -> None:
        back = now - self._path.delay
        # Who does not need the window learns nothing about a larger one (RFC 7661).
        grows = 2 * self._in_flight >= self._window
        while self._flying and self._flying[0].arrival <= back:
            weight = self._flying.popleft().weight
            self._in_flight -= weight
            if grows:
                step = weight if self._window < self._threshold else SEGMENT * weight / self._window
                self._window = min(self._window + step, LARGEST_WINDOW)
        for hole in [hole for hole in self._holes if hole.arrival <= back]:
            if hole.sent > self._recovered:
                self._recovered = now
                # The RFC halves what was under way, Linux what might have been: more, where messages are sparse.
                self._threshold = max(self._window / 2, 2.0 * SEGMENT)
                # After a timeout it is one segment, and one more for the acknowledgement that is here now.
                self._window = self._threshold if hole.told else 2.0 * SEGMENT
            self._in_flight -= hole.weight
        self._holes = [hole for hole in self._holes if hole.arrival > back]
        self._awaited = [hole for hole in self._awaited if hole.arrival > back]
