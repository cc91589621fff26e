"""The contract of a router: a score per query, a threshold, and a record of each decision."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Any, ClassVar

from ianvs_specdec.benchmarks.rows import query_of_row, row_of
from ianvs_specdec.errors import UserError
from ianvs_specdec.types import Query


class Router(ABC):
    """Called by Ianvs with each row, or with the edge's response to it (mode inference-then-mining); True = hard =
    cloud.

    The decision is left in both under ``routing``, where the model that answers picks it up: ``router``, ``score``,
    ``hard`` and ``seconds`` (the router's own time; None where it has no meaning).
    """

    timed: ClassVar[bool] = True

    def __init__(self, threshold: float = 0.5) -> None:
        self.threshold = number("threshold", threshold, low=0.0, high=1.0)

    @abstractmethod
    def score(self, query: Query) -> float:
        """Probability, from 0 to 1, that the edge's answer to the query will not do."""

    def score_row(self, data: Any) -> float:
        """The score of a row or response. For routers that need more than the query."""
        return self.score(query_of_row(data))

    def __call__(self, data: Any) -> bool:
        started = time.perf_counter()
        score = self.score_row(data)
        hard = bool(score >= self.threshold)
        seconds = time.perf_counter() - started
        decision = {
            "router": type(self).__name__,
            "score": score,
            "hard": hard,
            "seconds": seconds if self.timed else None,
        }
        for place in (data, row_of(data)):
            if isinstance(place, dict):
                place["routing"] = decision
        return hard


def number(name: str, value: Any, *, low: float, high: float) -> float:
    """``value`` as a float. Raises UserError if it is not a number from ``low`` to ``high``."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise UserError(f"{name} must be a number from {low:g} to {high:g}, not {value!r}", key=name)
    return float(value)
