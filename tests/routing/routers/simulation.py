"""A deterministic simulation of an edge and a cloud with queues."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ianvs_specdec.routing.routers.latency import LatencyRouter

Load = Callable[[float], float]
"""Seconds of simulated time -> by what factor a side is slower than usual; infinity = requests fail at ``timeout``."""


@dataclass
class Server:
    """``parallel`` requests are served at a time, the others queue. Service times are log-normal around
    ``seconds``."""

    seconds: float
    sigma: float = 0.2
    parallel: int = 1
    load: Load = lambda now: 1.0
    timeout: float = 10.0
    free: list[float] = field(default_factory=list)

    def serve(self, now: float, random: np.random.Generator) -> tuple[float, bool]:
        """Completion time of a request that arrives now, and whether it fails."""
        while len(self.free) < self.parallel:
            heapq.heappush(self.free, 0.0)
        start = max(now, heapq.heappop(self.free))
        time = self.seconds * self.load(start) * float(random.lognormal(0.0, self.sigma))
        failed = not math.isfinite(time) or start + time - now > self.timeout
        done = now + self.timeout if failed else start + time
        heapq.heappush(self.free, max(start, done) if not math.isinf(time) else start)
        return done, failed


@dataclass
class Outcome:
    arrived: float
    side: str
    seconds: float
    reason: str


class Simulation:
    """Queries arrive at random, ``rate`` a second; the router decides and observes the answers."""

    def __init__(self, edge: Server, cloud: Server, seed: int = 0) -> None:
        self.now = 0.0
        self._servers = {"edge": edge, "cloud": cloud}
        self._random = np.random.default_rng(seed)

    def clock(self) -> float:
        return self.now

    def run(self, router: LatencyRouter, count: int, rate: float) -> list[Outcome]:
        under_way: list[tuple[float, int, str, dict[str, Any], float, bool]] = []
        outcomes = []
        arrivals = np.cumsum(self._random.exponential(1 / rate, count))
        for number, arrived in enumerate(arrivals):
            self._finish(router, under_way, until=float(arrived))
            self.now = float(arrived)
            row = {"query": f"question {number}", "index": number}
            decision = router.decide(row)
            side = "cloud" if decision.hard else "edge"
            router.began(side, row)
            done, failed = self._servers[side].serve(self.now, self._random)
            heapq.heappush(under_way, (done, number, side, row, self.now, failed))
            outcomes.append(Outcome(self.now, side, math.inf if failed else done - self.now, decision.reason))
        self._finish(router, under_way, until=math.inf)
        return outcomes

    def _finish(self, router: LatencyRouter, under_way: list[Any], until: float) -> None:
        while under_way and under_way[0][0] <= until:
            done, _, side, row, begun, failed = heapq.heappop(under_way)
            self.now = done
            perf = {"time_to_first_token": done - begun, "latency": done - begun}
            router.ended(side, row, {"error": "no answer"} if failed else {"perf": perf})


def met(outcomes: list[Outcome], slo: float, start: float = 0.0, end: float = math.inf) -> float:
    """Share of the queries that arrived between ``start`` and ``end`` and met the objective."""
    return float(np.mean([outcome.seconds <= slo for outcome in outcomes if start <= outcome.arrived < end]))


def on_edge(outcomes: list[Outcome], start: float = 0.0, end: float = math.inf) -> float:
    """Share of the queries that arrived between ``start`` and ``end`` and were sent to the edge."""
    return float(np.mean([outcome.side == "edge" for outcome in outcomes if start <= outcome.arrived < end]))
