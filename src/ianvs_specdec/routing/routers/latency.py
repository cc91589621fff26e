"""LatencyRouter: a query goes where the router inside sends it, unless that side is too slow at present."""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ianvs_specdec.benchmarks.rows import row_of
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.plugin import edge_first, observers
from ianvs_specdec.plugin.processor import DatasetProcessor
from ianvs_specdec.routing.routers.base import Decision, Modules
from ianvs_specdec.routing.routers.constrained import PRIVATE, AnyRouter, ConstrainedRouter, overrule

Seconds = Annotated[float, Field(gt=0, le=1e6)]

SIDES = ("edge", "cloud")
TIMES = {"ttft": "time_to_first_token", "latency": "latency"}
"""What an objective may be about -> its name in a response's ``perf``."""

NO_OBJECTIVE = "LatencyRouter needs an objective, its own or the dataset processor's: slo_ttft or slo_latency"

STEP = 0.05
"""Growth (as a logarithm) of the expected time after each answer that misses the objective against expectation."""
PROBES = 0.4
"""Share of the permitted misses that retries of a slow side may take."""
FIRST = 10
"""Queries before the first retry of a slow side; their number doubles with each retry, up to what is permitted."""

Floats = NDArray[np.float64]

MEMORY, LATEST, NEIGHBOURS = 256, 5, 3
"""Answers remembered; the last ones, for the present; those before and after each one that it is compared with."""
FEW, WIDE = 8, 1.25
"""With fewer answers than ``FEW`` the spread is at least ``WIDE``."""
FAR = 3.0
"""Answers that took more than this many times as long as those around them count as this many."""


class Pace:
    """A request's time is modelled as ``present * weight * spread``: the median of the last few answers (s), the effect
    of the requests under way when it came, and the ``percentile`` of how far requests exceed those around them.

    ``expected``: seconds before the first answer. ``queue``: whether requests are assumed to wait for each other until
    there are answers. Not thread-safe.
    """

    def __init__(self, percentile: float, expected: float | None, queue: bool, clock: Callable[[], float]) -> None:
        self._percentile, self._expected, self._clock = percentile, expected, clock
        self._waiting: dict[int, list[tuple[float, int]]] = {}
        self._seen: deque[tuple[int, float]] = deque(maxlen=MEMORY)
        self._assumed = self._per_request = 1.0 if queue else 0.0
        self._latest: list[float] = []
        self._spread = 1.0
        self.under_way = 0

    @property
    def known(self) -> bool:
        return bool(self._seen)

    def began(self, key: int) -> None:
        self._waiting.setdefault(key, []).append((self._clock(), self.under_way))
        self.under_way += 1

    def ended(self, key: int, seconds: float | None) -> None:
        """``seconds`` that it took: infinity if it failed, None where they are unknown."""
        begun = self._waiting.get(key)
        if not begun:
            return
        _, before = begun.pop()
        self.under_way -= 1
        if not begun:
            del self._waiting[key]
        if seconds is not None:
            self._seen.append((before, seconds))
            self._learn()

    def predict(self, *, latest: bool = False) -> float | None:
        """Seconds for a request that begins now; None = unknown. ``latest``: by the last answer alone."""
        if not self._seen:
            return self._expected and self._expected * self._weight(self.under_way)
        present = self._latest[-1] if latest else statistics.median([*self._latest, *self._overdue()][-LATEST:])
        return present * self._weight(self.under_way) * self._spread

    def _overdue(self) -> list[float]:
        """The times so far of requests under way that take longer than usual: a side that hangs gives no answers."""
        now, usual = self._clock(), statistics.median(self._latest) * self._spread
        begun = [entry for entries in self._waiting.values() for entry in entries]
        taken = [(now - start) / self._weight(before) for start, before in begun]
        return sorted(seconds for seconds in taken if seconds > usual)

    def _weight(self, before: int) -> float:
        return 1.0 + self._per_request * before

    def _learn(self) -> None:
        before, seconds = np.array(self._seen, dtype=np.float64).T
        self._fit(before, seconds)
        alone = seconds / (1.0 + self._per_request * before)
        self._latest = alone[-LATEST:].tolist()
        around = _around(alone)
        # One failure among answers is far off; in a row of them it is the present.
        usual = ~np.isfinite(around) | (around <= 0)
        excess = np.sort(np.where(usual, 1.0, alone / np.where(usual, 1.0, around)))
        rank = min(len(excess), math.ceil(self._percentile * (len(excess) + 1))) - 1
        self._spread = max(float(excess[rank]), WIDE if len(excess) < FEW else 1.0)

    def _fit(self, before: Floats, seconds: Floats) -> None:
        """By how much each request under way lengthens the next, compared with neighbours in time."""
        usual = _around(seconds)
        known = np.isfinite(usual) & (usual > 0)
        if not known.any():
            return
        relative = np.minimum(seconds[known] / usual[known], FAR) - 1.0
        deviation, mean = (before - _around(before))[known], float(np.mean(before[known]))
        # What is assumed counts like one answer that was as far from the others as is usual here.
        prior = self._assumed / (1.0 + self._assumed * mean)
        slope = max(0.0, (float(deviation @ relative) + prior) / (float(deviation @ deviation) + 1.0))
        self._per_request = slope / (1.0 - min(0.9, slope * mean))


def _around(values: Floats) -> Floats:
    """The median of each value and its neighbours on both sides, float64 [values]."""
    near = min(NEIGHBOURS, len(values) - 1)
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(values, near, mode="reflect"), 2 * near + 1)
    return np.sort(windows, axis=1)[:, near]


class LatencyRouter(ConstrainedRouter):
    """The router inside is overruled if its side is expected to miss the objective (``slo_ttft``, ``slo_latency``, in
    seconds, or the row's own) and the other side is not; if both are, the faster side is asked. ``percentile`` of the
    queries are to meet it. ``edge_latency``, ``cloud_latency``: seconds to expect before a side's first answer.

    Times are learned from the requests answered and under way (see ``Pace``), with a margin that grows until no more of
    them miss the objective than may. A side that is avoided is retried for a few % of the queries at most. Where the
    edge has been asked first, the time of its answer counts for the cloud, too.
    """

    def __init__(
        self,
        router: AnyRouter = "RandomRouter",
        slo_ttft: Seconds | None = None,
        slo_latency: Seconds | None = None,
        percentile: Annotated[float, Field(ge=0.5, le=0.999)] = 0.95,
        edge_latency: Seconds | None = None,
        cloud_latency: Seconds | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.check_hyperparameters(locals())
        super().__init__(router)
        self._slo = {name: limit for name, limit in (("ttft", slo_ttft), ("latency", slo_latency)) if limit is not None}
        self._interval = math.ceil(1 / (PROBES * (1 - percentile)))
        met = 1 - (1 - PROBES) * (1 - percentile)
        expected = {"edge": edge_latency, "cloud": cloud_latency}
        self._paces = {
            side: {name: Pace(met, expected[side], side == "edge", clock) for name in self._slo or TIMES}
            for side in SIDES
        }
        self._permitted = 1 - met
        self._margin = dict.fromkeys(SIDES, 0.0)
        self._promised: set[tuple[str, int]] = set()
        self._since = dict.fromkeys(SIDES, 0)
        self._patience = dict.fromkeys(SIDES, min(FIRST, self._interval))
        self._mutex = threading.Lock()
        observers.subscribe(self)

    @classmethod
    def check_test_case(cls, hyperparameters: Mapping[str, Any], modules: Modules) -> None:
        super().check_test_case(hyperparameters, modules)
        kind, theirs = modules.get("dataset_processor", (None, {}))
        # Rows of another processor may bring an objective that is not known here.
        other = kind is not None and not (isinstance(kind, type) and issubclass(kind, DatasetProcessor))
        own = [hyperparameters.get(f"slo_{name}") or theirs.get(f"slo_{name}") for name in TIMES]
        if not other and not any(own):
            raise UserError(NO_OBJECTIVE, key="slo_ttft")

    def decide(self, data: Any) -> Decision:
        decision = self.ask(data)
        if PRIVATE in decision.details:
            return decision
        # A cascade inside may have asked the edge: then its answer is there, as in the mode inference-then-mining.
        data = edge_first.pending_answer(data)
        slo = self._slo or _given(row_of(data))
        if not slo:
            raise UserError(NO_OBJECTIVE, key="slo_ttft")
        wanted, other = ("cloud", "edge") if decision.hard else ("edge", "cloud")
        with self._mutex:
            excess = {side: self._excess(side, data, slo) for side in SIDES}
            chosen, reason = wanted, ""
            if excess[wanted] > 1 and excess[other] < excess[wanted]:
                chosen, reason = other, f"latency: the {wanted} is too slow"
            avoided = other if chosen == wanted else wanted
            if excess[chosen] <= 1:
                self._patience[chosen] = min(FIRST, self._interval)
            if excess[chosen] > 1 or chosen != wanted:
                self._since[avoided] += 1
                if self._due(avoided, data, slo):
                    self._since[avoided] = 0
                    self._patience[avoided] = min(self._interval, 2 * self._patience[avoided])
                    chosen, reason = avoided, f"latency: is the {avoided} still slow?"
        expected = {side: round(value, 4) if math.isfinite(value) else None for side, value in excess.items()}
        if chosen != wanted or reason:
            return overrule(decision, chosen == "cloud", reason, expected=expected)
        return replace(decision, details={**decision.details, "expected": expected})

    def began(self, side: str, data: Any) -> None:
        with self._mutex:
            if self._excess(side, data, self._slo or _given(data)) <= 1:
                self._promised.add((side, id(data)))
            for pace in self._paces[side].values():
                pace.began(id(data))
            self._since[side] = 0

    def ended(self, side: str, data: Any, response: Mapping[str, Any] | None) -> None:
        failed = response is None or bool(response.get("error"))
        perf = {} if response is None else response.get("perf") or {}
        taken = {name: math.inf if failed else perf.get(TIMES[name]) for name in TIMES}
        with self._mutex:
            for name, pace in self._paces[side].items():
                pace.ended(id(data), taken[name])
            missed = any((taken[name] or 0.0) > limit for name, limit in (self._slo or _given(data)).items())
            # Kept promises lower the margin a little, broken ones raise it, and needless caution lowers it more.
            step = missed - (self._permitted if (side, id(data)) in self._promised else 1.0)
            self._promised.discard((side, id(data)))
            self._margin[side] = max(0.0, self._margin[side] + STEP * step)

    def _excess(self, side: str, data: Any, slo: Mapping[str, float], latest: bool = False) -> float:
        """What to expect of a side, as a multiple of the objective; 0 if nothing is known."""
        answered = row_of(data) is not data and isinstance(data, Mapping)
        perf = (data.get("perf") or {}) if answered else {}
        waited = perf.get("latency") or 0.0
        worst = 0.0
        for name, limit in slo.items():
            if answered and side == "edge":
                seconds = math.inf if data.get("error") else perf.get(TIMES[name])
            else:
                seconds = self._paces[side][name].predict(latest=latest)
                if seconds is not None:
                    seconds = seconds * math.exp(self._margin[side]) + waited
            worst = max(worst, (seconds or 0.0) / limit)
        return worst

    def _due(self, side: str, data: Any, slo: Mapping[str, float]) -> bool:
        """Whether to retry a side that is avoided: seldom, but at once after a fast answer."""
        paces = self._paces[side].values()
        under_way = max(pace.under_way for pace in paces)
        if not under_way and any(pace.known for pace in paces) and self._excess(side, data, slo, latest=True) <= 1:
            return True
        return self._since[side] >= self._patience[side] * (1 + under_way)


def _given(row: Any) -> Mapping[str, float]:
    slo = row.get("slo") if isinstance(row, Mapping) else None
    return {name: limit for name, limit in (slo or {}).items() if name in TIMES}
