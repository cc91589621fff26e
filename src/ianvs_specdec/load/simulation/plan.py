"""The simulated workload: number of edges, arrivals, network delays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ianvs_specdec.engine.loop import MOST_AT_ONCE
from ianvs_specdec.load.patterns import PATTERNS as OPEN_PATTERNS
from ianvs_specdec.load.patterns import POISSON, Arrival

CLOSED = "closed"
PATTERNS = (*OPEN_PATTERNS, CLOSED)
PER_EDGE = 1 / 60
"""Default requests per second of one edge: one per minute."""
QUEUE = 256
"""Requests that wait at the most, as with ``specdec serve``."""


@dataclass(frozen=True)
class UserPlan:
    """``edges`` ask for ``hours``, ``rate`` requests a second together. ``arrivals``: one of ``PATTERNS``; closed means
    that each edge asks again only after its answer. Or the name of a trace, whose requests are ``coming``. ``network``
    is the median of the edges' delays, one way, in seconds. ``slo`` has objectives in seconds: ttft, tpot, latency."""

    policy: str
    edges: int
    hours: float
    seed: int = 0
    rate: float | None = None
    arrivals: str = POISSON
    network: float = 0.0
    at_once: int = MOST_AT_ONCE
    queue: int = QUEUE
    slo: Mapping[str, float] = field(default_factory=dict)
    coming: Sequence[Arrival] = ()

    @property
    def seconds(self) -> float:
        return 3600 * self.hours

    @property
    def per_second(self) -> float:
        return self.edges * PER_EDGE if self.rate is None else self.rate
