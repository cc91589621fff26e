"""The server of a simulation: the real engine, whose steps take the time of a cost table."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, cast

import simpy

from ianvs_specdec.backends.emulation import Emulation
from ianvs_specdec.engine.costs import CostTable
from ianvs_specdec.engine.length import Length
from ianvs_specdec.engine.loop import Engine
from ianvs_specdec.load.simulation.requests import (
    EmittedTokens,
    SimulatedRequest,
    SimulatedTarget,
    UserRequest,
    VirtualClock,
)


class Server:
    """Takes requests at any time: ``at_once`` share the steps of the engine, ``queue`` more wait there in the order
    they came, and what comes beyond is refused. ``told`` is called with each request when it is over."""

    def __init__(
        self,
        env: simpy.Environment,
        costs: CostTable,
        length: Length,
        told: Callable[[SimulatedRequest], None],
        *,
        at_once: int,
        queue: int,
    ) -> None:
        self.tally = EmittedTokens()
        self.in_flight = 0
        self.busy_seconds = 0.0
        self._env, self._told, self._most = env, told, at_once + queue
        self._clock = VirtualClock()
        self._target = SimulatedTarget(costs)
        self._engine = Engine(
            cast(Any, self._target), length, max_batch_size=at_once, timer=Emulation(costs, clock=self._clock)
        )
        self._arrived: list[SimulatedRequest] = []
        self._wake = env.event()
        env.process(self._serve())

    def ask(self, asked: UserRequest, delay: float = 0.0) -> SimulatedRequest | None:
        """A request arrives now from a user who is ``delay`` seconds away. None: it is refused."""
        if self.in_flight >= self._most:
            return None
        self.in_flight += 1
        request = SimulatedRequest(self._target, asked, self._env.now, delay, self._clock, self.tally)
        self._arrived.append(request)
        if not self._wake.triggered:
            self._wake.succeed()
        return request

    def _serve(self) -> Generator[simpy.Event, Any, None]:
        env, engine, clock = self._env, self._engine, self._clock
        while True:
            if not (engine.busy or self._arrived):
                self._wake = env.event()
                yield self._wake
                clock.time = env.now
            # Whoever comes during a step is let in before the next one.
            for request in self._arrived:
                engine.add(request)
            self._arrived.clear()
            over = engine.step()
            if (seconds := clock.time - env.now) > 0:
                self.busy_seconds += seconds
                yield env.timeout(seconds)
            self.in_flight -= len(over)
            for ended in over:
                if ended.error is not None:
                    raise ended.error
                assert isinstance(ended, SimulatedRequest)
                self._told(ended)
