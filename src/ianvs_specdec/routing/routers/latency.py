"""LatencyRouter: overrules the wrapped router if its side is too slow at present."""

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
"""Metric of an objective -> its key in a response's ``perf``."""

NO_OBJECTIVE = "LatencyRouter needs an objective, its own or the dataset processor's: slo_ttft or slo_latency"

STEP = 0.05
"""Increase of the log margin after each unexpected miss of the objective."""
PROBES = 0.4
"""Share of the permitted misses that is used for retries."""
FIRST = 10
"""Queries before the first retry of a slow side. The number doubles with each retry, up to a limit."""

Floats = NDArray[np.float64]

MEMORY, LATEST, NEIGHBOURS = 256, 5, 3
"""Number of kept answers, of latest ones, and of neighbours in time on each side of an answer."""
FEW, WIDE = 8, 1.25
"""With fewer than ``FEW`` answers the spread is at least ``WIDE``."""
FAR = 3.0
"""Limit of an answer's time relative to its neighbours."""


class Pace:
    """Predicts the time of a request as ``present * weight * spread``: the median of the latest answers (s), the effect
    of concurrent requests, and the ``percentile`` of the ratio of answers to their neighbours in time.

    ``expected``: seconds before the first answer; ``queue``: whether requests are assumed to be serialized before the
    first answers. Not thread-safe.
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
        """``seconds``: infinity after a failure, None if unknown."""
        started = self._waiting.get(key)
        if not started:
            return
        _, before = started.pop()
        self.under_way -= 1
        if not started:
            del self._waiting[key]
        if seconds is not None:
            self._seen.append((before, seconds))
            self._learn()

    def predict(self, *, latest: bool = False) -> float | None:
        """Seconds of a request that starts now, None if unknown. ``latest``: from the last answer only."""
        if not self._seen:
            return self._expected and self._expected * self._weight(self.under_way)
        present = self._latest[-1] if latest else statistics.median([*self._latest, *self._overdue()][-LATEST:])
        return present * self._weight(self.under_way) * self._spread

    def _overdue(self) -> list[float]:
        """Elapsed times of overdue requests, for a side that hangs."""
        now, usual = self._clock(), statistics.median(self._latest) * self._spread
        started = [entry for entries in self._waiting.values() for entry in entries]
        elapsed = [(now - start) / self._weight(before) for start, before in started]
        return sorted(seconds for seconds in elapsed if seconds > usual)

    def _weight(self, before: int) -> float:
        return 1.0 + self._per_request * before

    def _learn(self) -> None:
        before, seconds = np.array(self._seen, dtype=np.float64).T
        self._fit(before, seconds)
        alone = seconds / (1.0 + self._per_request * before)
        self._latest = alone[-LATEST:].tolist()
        around = _around(alone)
        # A single failure is an outlier. A row of failures is the present.
        usual = ~np.isfinite(around) | (around <= 0)
        excess = np.sort(np.where(usual, 1.0, alone / np.where(usual, 1.0, around)))
        rank = min(len(excess), math.ceil(self._percentile * (len(excess) + 1))) - 1
        self._spread = max(float(excess[rank]), WIDE if len(excess) < FEW else 1.0)

    def _fit(self, before: Floats, seconds: Floats) -> None:
        """Fit the relative delay per concurrent request, compared with neighbours in time."""
        usual = _around(seconds)
        known = np.isfinite(usual) & (usual > 0)
        if not known.any():
            return
        relative = np.minimum(seconds[known] / usual[known], FAR) - 1.0
        deviation, mean = (before - _around(before))[known], float(np.mean(before[known]))
        # The assumption has the weight of one answer with a typical deviation.
        prior = self._assumed / (1.0 + self._assumed * mean)
        slope = max(0.0, (float(deviation @ relative) + prior) / (float(deviation @ deviation) + 1.0))
        self._per_request = slope / (1.0 - min(0.9, slope * mean))


def _around(values: Floats) -> Floats:
    """Running median over the neighbours on both sides, float64 [values]."""
    near = min(NEIGHBOURS, len(values) - 1)
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(values, near, mode="reflect"), 2 * near + 1)
    return np.sort(windows, axis=1)[:, near]


class LatencyRouter(ConstrainedRouter):
    """Overrules the wrapped router if its side is expected to miss the objective (``slo_ttft``, ``slo_latency``, in
    seconds, or the row's) and the other side is faster. ``percentile``: target share of queries that meet it.
    ``edge_latency``, ``cloud_latency``: expected seconds before a side's first answer.

    Times are learned from the requests (see ``Pace``), with a margin that adapts to the observed misses. An avoided
    side is retried for a few % of the queries. If the edge has already answered, its time counts for the cloud, too.
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
        kind, processor = modules.get("dataset_processor", (None, {}))
        # Another processor may set objectives per row.
        other = kind is not None and not (isinstance(kind, type) and issubclass(kind, DatasetProcessor))
        objectives = [hyperparameters.get(f"slo_{name}") or processor.get(f"slo_{name}") for name in TIMES]
        if not other and not any(objectives):
            raise UserError(NO_OBJECTIVE, key="slo_ttft")

    def decide(self, data: Any) -> Decision:
        decision = self.ask(data)
        if PRIVATE in decision.details:
            return decision
        # With a wrapped cascade the edge may have answered, as in the mode inference-then-mining.
        data = edge_first.pending_answer(data)
        slo = self._slo or _given(row_of(data))
        if not slo:
            raise UserError(NO_OBJECTIVE, key="slo_ttft")
        preferred, other = ("cloud", "edge") if decision.hard else ("edge", "cloud")
        with self._mutex:
            excess = {side: self._excess(side, data, slo) for side in SIDES}
            chosen, reason = preferred, ""
            if excess[preferred] > 1 and excess[other] < excess[preferred]:
                chosen, reason = other, f"latency: the {preferred} is too slow"
            avoided = other if chosen == preferred else preferred
            if excess[chosen] <= 1:
                self._patience[chosen] = min(FIRST, self._interval)
            if excess[chosen] > 1 or chosen != preferred:
                self._since[avoided] += 1
                if self._due(avoided, data, slo):
                    self._since[avoided] = 0
                    self._patience[avoided] = min(self._interval, 2 * self._patience[avoided])
                    chosen, reason = avoided, f"latency: is the {avoided} still slow?"
        expected = {side: round(value, 4) if math.isfinite(value) else None for side, value in excess.items()}
        if chosen != preferred or reason:
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
        elapsed = {name: math.inf if failed else perf.get(TIMES[name]) for name in TIMES}
        with self._mutex:
            for name, pace in self._paces[side].items():
                pace.ended(id(data), elapsed[name])
            missed = any((elapsed[name] or 0.0) > limit for name, limit in (self._slo or _given(data)).items())
            # Lower the margin a little after a predicted hit, raise it after a miss, lower it more after caution.
            step = missed - (self._permitted if (side, id(data)) in self._promised else 1.0)
            self._promised.discard((side, id(data)))
            self._margin[side] = max(0.0, self._margin[side] + STEP * step)

    def _excess(self, side: str, data: Any, slo: Mapping[str, float], latest: bool = False) -> float:
        """The expected time of a side as a multiple of the objective, 0 if unknown."""
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
        """Whether to retry an avoided side: rarely, but at once after a fast answer."""
        paces = self._paces[side].values()
        under_way = max(pace.under_way for pace in paces)
        if not under_way and any(pace.known for pace in paces) and self._excess(side, data, slo, latest=True) <= 1:
            return True
        return self._since[side] >= self._patience[side] * (1 + under_way)


def _given(row: Any) -> Mapping[str, float]:
    slo = row.get("slo") if isinstance(row, Mapping) else None
    return {name: limit for name, limit in (slo or {}).items() if name in TIMES}
