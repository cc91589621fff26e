"""The simulated server and its users, as processes of SimPy."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from random import Random
from typing import Any, cast

import simpy
import torch

from ianvs_specdec.backends.emulation import Emulation
from ianvs_specdec.engine.costs import CostTable
from ianvs_specdec.engine.loop import Engine
from ianvs_specdec.engine.scheduling import Length, Load
from ianvs_specdec.load.arrivals import Arrival, pause
from ianvs_specdec.load.simulation.outcome import Span, outcome
from ianvs_specdec.load.simulation.plan import CLOSED, SimulationPlan
from ianvs_specdec.load.simulation.requests import (
    EmittedTokens,
    SimulatedAnswer,
    SimulatedRequest,
    SimulatedTarget,
    UserRequest,
    VirtualClock,
)
from ianvs_specdec.load.simulation.workload import Workload

DELAY_SIGMA = 0.5
"""Standard deviation of the logarithm of the edges' network delays: most are between half and twice the median."""
SPANS = 60
"""Time intervals of ``over_time``."""

Process = Generator[simpy.Event, Any, None]


def simulate(plan: SimulationPlan, costs: CostTable, length: Length, workload: Workload) -> dict[str, Any]:
    """Simulate the plan with ``length``. Returns JSON, the same for the same seed."""
    env = simpy.Environment()
    metered = _MeteredLength(length, costs.largest_draft)
    finished: list[SimulatedAnswer] = []

    def on_finish(request: SimulatedRequest) -> None:
        finished.append(request.answer())
        if request.answered is not None:
            request.answered.succeed()

    server = Server(env, costs, metered, on_finish, at_once=plan.at_once, queue=plan.queue)
    users = _Users(env, plan, workload, server)
    spans: list[Span] = []
    env.process(_sample(env, plan.seconds / SPANS, server, metered, spans))
    # Once: the engine enters it in each step, which takes 10 % of a simulated step.
    with torch.inference_mode():
        # Processes at the end of the last span do not run.
        env.run(until=plan.seconds)
    spans.append(metered.span(plan.seconds, server.tally.emitted))
    counts = {"sent": users.sent, "completed": len(finished), "refused": users.refused, "in_flight": server.in_flight}
    return outcome(plan, costs, finished, counts, server.busy_seconds, spans)


class Server:
    """The real engine, whose steps take the time of a cost table: ``at_once`` requests share its steps, ``queue`` more
    wait, others are refused. ``on_finish`` gets each finished request."""

    def __init__(
        self,
        env: simpy.Environment,
        costs: CostTable,
        length: Length,
        on_finish: Callable[[SimulatedRequest], None],
        *,
        at_once: int,
        queue: int,
    ) -> None:
        self.tally = EmittedTokens()
        self.in_flight = 0
        self.busy_seconds = 0.0
        self._env, self._on_finish, self._limit = env, on_finish, at_once + queue
        self._clock = VirtualClock()
        self._target = SimulatedTarget(costs)
        meter = Emulation(costs, clock=self._clock)
        self._engine = Engine(cast(Any, self._target), length, at_once=at_once, meter=meter)
        self._arrived: list[SimulatedRequest] = []
        self._wake = env.event()
        env.process(self._serve())

    def submit(self, request: UserRequest, delay: float) -> SimulatedRequest | None:
        """A request arrives, from an edge with this network delay. Returns None if it is refused."""
        if self.in_flight >= self._limit:
            return None
        self.in_flight += 1
        accepted = SimulatedRequest(self._target, request, self._env.now, delay, self._clock, self.tally)
        self._arrived.append(accepted)
        if not self._wake.triggered:
            self._wake.succeed()
        return accepted

    def _serve(self) -> Process:
        env, engine, clock = self._env, self._engine, self._clock
        while True:
            if not (engine.busy or self._arrived):
                self._wake = env.event()
                yield self._wake
                clock.time = env.now
            # Requests that arrive during a step join before the next one.
            for request in self._arrived:
                engine.add(request)
            self._arrived.clear()
            finished = engine.step()
            if (seconds := clock.time - env.now) > 0:
                self.busy_seconds += seconds
                yield env.timeout(seconds)
            self.in_flight -= len(finished)
            for ended in finished:
                if ended.error is not None:
                    raise ended.error
                assert isinstance(ended, SimulatedRequest)
                self._on_finish(ended)


class _MeteredLength:
    """Counts the calls and budgets of a length."""

    def __init__(self, length: Length, most: int) -> None:
        self._length, self._most = length, most
        self.learn = length.learn
        self._emitted = 0
        self._reset()

    @property
    def confidence(self) -> float:
        return self._length.confidence

    def budgets(self, load: Load) -> Sequence[int]:
        budgets = self._length.budgets(load)
        most = self._most
        self._steps += 1
        self._requests += len(budgets)
        self._tokens += sum([budget if budget < most else most for budget in budgets])
        self._waiting += load.waiting
        return budgets

    def _reset(self) -> None:
        self._steps = self._requests = self._tokens = self._waiting = 0

    def span(self, until: float, emitted: int) -> Span:
        """The interval since the last call."""
        steps = self._steps
        found = Span(
            until,
            emitted - self._emitted,
            self._requests / steps if steps else 0.0,
            self._waiting / steps if steps else 0.0,
            self._tokens / self._requests if self._requests else None,
        )
        self._emitted = emitted
        self._reset()
        return found


def _sample(
    env: simpy.Environment, interval: float, server: Server, length: _MeteredLength, spans: list[Span]
) -> Process:
    while True:
        yield env.timeout(interval)
        spans.append(length.span(env.now, server.tally.emitted))


class _Users:
    """The edges' requests. With CLOSED arrivals each edge has its own random numbers, so its requests do not depend on
    how fast others are answered."""

    def __init__(self, env: simpy.Environment, plan: SimulationPlan, workload: Workload, server: Server) -> None:
        self._env, self._plan, self._workload, self._server = env, plan, workload, server
        self.sent = self.refused = 0
        rng = Random(f"edges {plan.seed}")
        self._delays = [plan.network * math.exp(rng.gauss(0.0, DELAY_SIGMA)) for _ in range(plan.edges)]
        if plan.arrivals == CLOSED:
            for edge in range(plan.edges):
                env.process(self._edge(edge))
        else:
            env.process(self._arrivals())

    def _arrivals(self) -> Process:
        when, what = Random(f"arrivals {self._plan.seed}"), Random(f"requests {self._plan.seed}")
        for seconds, arrival in self._pauses(when):
            yield self._env.timeout(seconds)
            delay = self._delays[what.randrange(self._plan.edges)]
            request = self._workload.draw(what, arrival)
            self.sent += 1
            if delay:
                self._env.process(self._send_later(request, delay))
            else:
                self._send(request, delay)

    def _pauses(self, rng: Random) -> Iterator[tuple[float, Arrival | None]]:
        """Seconds until the next request, and the request if it is from a trace."""
        plan, before = self._plan, 0.0
        for arrival in plan.coming:
            yield arrival.seconds - before, arrival
            before = arrival.seconds
        while not plan.coming:
            yield pause(plan.arrivals, plan.per_second, rng), None

    def _send_later(self, request: UserRequest, delay: float) -> Process:
        yield self._env.timeout(delay)
        self._send(request, delay)

    def _send(self, request: UserRequest, delay: float) -> SimulatedRequest | None:
        accepted = self._server.submit(request, delay)
        self.refused += accepted is None
        return accepted

    def _edge(self, edge: int) -> Process:
        env, rng, delay = self._env, Random(f"edge {edge} {self._plan.seed}"), self._delays[edge]
        rate = self._plan.per_second / self._plan.edges
        while True:
            yield env.timeout(rng.expovariate(rate))
            request = self._workload.draw(rng)
            self.sent += 1
            yield env.timeout(delay)
            if (accepted := self._send(request, delay)) is not None:
                accepted.answered = env.event()
                yield accepted.answered
                yield env.timeout(delay)
