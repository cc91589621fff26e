"""Users of a simulated server: when they ask, how far away they are, and what comes of it."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Sequence
from random import Random
from typing import Any

import simpy
import torch

from ianvs_specdec.engine.costs import CostTable
from ianvs_specdec.engine.length import Length, Load
from ianvs_specdec.load.patterns import Arrival, pause
from ianvs_specdec.load.simulation.outcome import Span, outcome
from ianvs_specdec.load.simulation.plan import CLOSED, UserPlan
from ianvs_specdec.load.simulation.requests import SimulatedAnswer, SimulatedRequest, UserRequest
from ianvs_specdec.load.simulation.server import Server
from ianvs_specdec.load.simulation.workload import Workload

DISTANCES = 0.5
"""Standard deviation of the logarithm of the edges' network delays: most lie within half and twice the median."""
SPANS = 60
"""Time intervals of ``over_time``."""


def simulate(plan: UserPlan, costs: CostTable, length: Length, workload: Workload) -> dict[str, Any]:
    """Simulate the plan with ``length``: JSON, deterministic."""
    env = simpy.Environment()
    watched = _Watched(length, costs.largest_draft)
    finished: list[SimulatedAnswer] = []

    def told(request: SimulatedRequest) -> None:
        finished.append(request.answer())
        if request.answered is not None:
            request.answered.succeed()

    server = Server(env, costs, watched, told, at_once=plan.at_once, queue=plan.queue)
    users = _Users(env, plan, workload)
    users.begin(server)
    spans: list[Span] = []
    env.process(_watch(env, plan.seconds / SPANS, server, watched, spans))
    # The engine would enter it for every step, which takes it a tenth of a step here.
    with torch.inference_mode():
        # The last span ends with the time, at which nothing is run any more.
        env.run(until=plan.seconds)
    spans.append(watched.span(plan.seconds, server.tally.emitted))
    counts = {"sent": users.sent, "completed": len(finished), "refused": users.refused, "in_flight": server.in_flight}
    return outcome(plan, costs, finished, counts, server.busy_seconds, spans)


class _Watched:
    """A length, and what it was asked and answered."""

    def __init__(self, length: Length, most: int) -> None:
        self._length, self._most = length, most
        self.learn = length.learn
        self._emitted = 0
        self._begin()

    @property
    def confidence(self) -> float:
        return self._length.confidence

    def budgets(self, load: Load) -> Sequence[int]:
        budgets = self._length.budgets(load)
        most = self._most
        self._steps += 1
        self._asked += len(budgets)
        self._tokens += sum([budget if budget < most else most for budget in budgets])
        self._waiting += load.waiting
        return budgets

    def _begin(self) -> None:
        self._steps = self._asked = self._tokens = self._waiting = 0

    def span(self, until: float, emitted: int) -> Span:
        """The time interval since the last call."""
        steps = self._steps
        found = Span(
            until,
            emitted - self._emitted,
            self._asked / steps if steps else 0.0,
            self._waiting / steps if steps else 0.0,
            self._tokens / self._asked if self._asked else None,
        )
        self._emitted = emitted
        self._begin()
        return found


def _watch(
    env: simpy.Environment, every: float, server: Server, watched: _Watched, spans: list[Span]
) -> Generator[simpy.Event, Any, None]:
    while True:
        yield env.timeout(every)
        spans.append(watched.span(env.now, server.tally.emitted))


class _Users:
    """Every edge has its own distance and, where it waits for its answers, its own chance, so that what it asks does
    not depend on how fast others are answered."""

    def __init__(self, env: simpy.Environment, plan: UserPlan, workload: Workload) -> None:
        self._env, self._plan, self._workload = env, plan, workload
        self.sent = self.refused = 0
        chance = Random(f"edges {plan.seed}")
        self._delays = [plan.network * math.exp(chance.gauss(0.0, DISTANCES)) for _ in range(plan.edges)]

    def begin(self, server: Server) -> None:
        """Ask ``server`` from now on."""
        if self._plan.arrivals == CLOSED:
            for edge in range(self._plan.edges):
                self._env.process(self._edge(server, edge))
        else:
            self._env.process(self._arrivals(server))

    def _arrivals(self, server: Server) -> Generator[simpy.Event, Any, None]:
        when, what = Random(f"arrivals {self._plan.seed}"), Random(f"requests {self._plan.seed}")
        for seconds, coming in self._pauses(when):
            yield self._env.timeout(seconds)
            delay = self._delays[what.randrange(self._plan.edges)]
            asked = self._workload.draw(what, coming)
            self.sent += 1
            if delay:
                self._env.process(self._under_way(server, asked, delay))
            else:
                self._ask(server, asked, delay)

    def _pauses(self, chance: Random) -> Iterator[tuple[float, Arrival | None]]:
        """Seconds until the next request, and which one of a trace it is."""
        plan, before = self._plan, 0.0
        for arrival in plan.coming:
            yield arrival.seconds - before, arrival
            before = arrival.seconds
        while not plan.coming:
            yield pause(plan.arrivals, plan.per_second, chance), None

    def _under_way(self, server: Server, asked: UserRequest, delay: float) -> Generator[simpy.Event, Any, None]:
        yield self._env.timeout(delay)
        self._ask(server, asked, delay)

    def _ask(self, server: Server, asked: UserRequest, delay: float) -> SimulatedRequest | None:
        request = server.ask(asked, delay)
        self.refused += request is None
        return request

    def _edge(self, server: Server, edge: int) -> Generator[simpy.Event, Any, None]:
        env, chance, delay = self._env, Random(f"edge {edge} {self._plan.seed}"), self._delays[edge]
        thinking = self._plan.per_second / self._plan.edges
        while True:
            yield env.timeout(chance.expovariate(thinking))
            asked = self._workload.draw(chance)
            self.sent += 1
            yield env.timeout(delay)
            if (request := self._ask(server, asked, delay)) is not None:
                request.answered = env.event()
                yield request.answered
                yield env.timeout(delay)
