"""The simulated server and its users, as processes of SimPy, and the result as JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, cast

import numpy as np
import simpy
import torch

from ianvs_specdec.backends.emulation import Emulation
from ianvs_specdec.engine.costs import CostTable
from ianvs_specdec.engine.length import Length, Load
from ianvs_specdec.engine.loop import Engine
from ianvs_specdec.load.arrivals import Arrival, pause
from ianvs_specdec.load.plan import CLOSED, SimulationPlan
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
        self._engine = Engine(cast(Any, self._target), length, max_batch_size=at_once, timer=meter)
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


FORMAT, VERSION = "specdec-simulation", 1
DIGITS = 7
"""Significant digits."""
PERCENTILES = (50, 90, 99)
TIMES = ("ttft", "tpot", "latency")


@dataclass(frozen=True)
class Span:
    """A time interval up to ``until``: emitted tokens, and means over the steps: decoding requests, waiting requests,
    and speculation length (None without requests)."""

    until: float
    tokens: int
    running: float
    waiting: float
    budget: float | None


def outcome(
    plan: SimulationPlan,
    costs: CostTable,
    finished: Sequence[SimulatedAnswer],
    counts: Mapping[str, int],
    busy_seconds: float,
    spans: Sequence[Span],
) -> dict[str, Any]:
    """The result of a simulation, of finished answers. Times are in seconds, including the network."""
    before, rows = 0.0, []
    for span in spans:
        seconds = span.until - before
        rows.append({
            "until": _rounded(span.until),
            "tokens_per_second": _rounded(span.tokens / seconds) if seconds > 0 else None,
            **{name: _rounded(getattr(span, name)) for name in ("running", "waiting", "budget")},
        })  # fmt: skip
        before = span.until
    tasks = sorted({answer.task for answer in finished})
    of_task = {task: [answer for answer in finished if answer.task == task] for task in tasks}
    return {
        "format": FORMAT,
        "version": VERSION,
        "profile": {"machine": costs.machine, "model": costs.model, "emulated": costs.emulated},
        "policy": plan.policy,
        "edges": plan.edges,
        "seconds": _rounded(plan.seconds),
        "seed": plan.seed,
        "arrivals": plan.arrivals,
        "rate": _rounded(plan.per_second),
        "network": _rounded(plan.network),
        "at_once": plan.at_once,
        "queue": plan.queue,
        "slo": {name: _rounded(limit) for name, limit in plan.slo.items()},
        "requests": dict(counts),
        "busy": _rounded(busy_seconds / plan.seconds),
        **_figures(finished, plan),
        "tasks": {task: _figures(answers, plan) for task, answers in of_task.items()} if len(tasks) > 1 else {},
        "over_time": [row for row in rows if row["tokens_per_second"] is not None],
    }


def _figures(answers: Sequence[SimulatedAnswer], plan: SimulationPlan) -> dict[str, Any]:
    times = {name: np.array([_time(name, answer) for answer in answers]) for name in TIMES}
    drafted, accepted, steps, tokens = (
        sum([getattr(answer, name) for answer in answers]) for name in ("drafted", "accepted", "steps", "tokens")
    )
    decoded = tokens - len(answers)  # without the first tokens, from the prompts
    met = np.ones(len(answers), dtype=bool)
    for name, limit in plan.slo.items():
        # NaN, of answers with one token, meets the objective.
        met &= ~(times[name] > limit)
    return {
        "requests_per_second": _rounded(len(answers) / plan.seconds),
        "tokens_per_second": _rounded(tokens / plan.seconds),
        **{name: _distribution(times[name]) for name in TIMES},
        "slo_goodput": _rounded(int(met.sum()) / plan.seconds) if plan.slo else None,
        "slo_attainment": _rounded(met.mean()) if plan.slo and len(answers) else None,
        "acceptance_rate": _rounded(accepted / drafted) if drafted else None,
        "tokens_per_step": _rounded(decoded / steps) if steps else None,
        "work_amplification": _rounded((drafted + steps) / decoded) if decoded else None,
    }


def _time(name: str, answer: SimulatedAnswer) -> float:
    if name == "tpot":
        return (answer.last - answer.first) / (answer.tokens - 1) if answer.tokens > 1 else float("nan")
    return (answer.first if name == "ttft" else answer.last) - answer.arrived + 2 * answer.delay


def _distribution(values: np.ndarray) -> dict[str, float | None]:
    known = values[~np.isnan(values)]
    if not known.size:
        return dict.fromkeys(("mean", *(f"p{percent}" for percent in PERCENTILES)))
    found = np.percentile(known, PERCENTILES)
    return {
        "mean": _rounded(float(known.mean())),
        **{f"p{percent}": _rounded(float(value)) for percent, value in zip(PERCENTILES, found, strict=True)},
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{DIGITS}g}")
