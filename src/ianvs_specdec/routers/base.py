"""The contract of a router: a score per query, a threshold, and a record of each decision."""

from __future__ import annotations

import inspect
import json
import math
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ianvs_specdec.answers.journal import Journal
from ianvs_specdec.benchmarks.rows import query_of_row, row_of
from ianvs_specdec.errors import UserError
from ianvs_specdec.identity import digest
from ianvs_specdec.plugin.overhead import Routing, settled
from ianvs_specdec.plugin.response import Response
from ianvs_specdec.run import current_repeat
from ianvs_specdec.types import Query

SECONDS_DIGITS = 9
"""A clock has nanoseconds."""


@dataclass(frozen=True)
class Decision:
    """``score``: probability that the edge's answer will not do; ``hard``: to the cloud. ``reason`` says in a few words
    why it is not the score that decided, and ``details`` are kept beside it; no part of a query's text is in either.
    ``waited``: the seconds that an answer took on which the decision rests; they are the model's, not the router's.
    """

    score: float
    hard: bool
    reason: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    waited: float = 0.0


class Router(ABC):
    """Called by Ianvs with each row, or with the edge's response to it (mode inference-then-mining); True = hard =
    cloud.

    The decision is left in both under ``routing``, where the model that answers picks it up: ``router``, ``score``,
    ``hard`` and ``seconds`` (the router's own time; None where it has no meaning), and ``reason`` and the decision's
    details where it has some.

    Most routers are a ``score``. One that needs more than the query overrides ``score_row``, one for which a threshold
    is not all ``decide``.
    """

    timed: ClassVar[bool] = True

    _given: tuple[Any, ...] = ()

    def __new__(cls, *args: Any, **hyperparameters: Any) -> Any:
        router = super().__new__(cls)
        # A time belongs to the router with these hyperparameters, whatever its class makes of them.
        router._given = (args, hyperparameters)
        return router

    def __init__(self, threshold: float = 0.5) -> None:
        self.threshold = number("threshold", threshold, low=0.0, high=1.0)

    @classmethod
    def check_hyperparameters(cls, hyperparameters: Mapping[str, Any]) -> None:
        """Raise UserError, with the ``key`` at fault, for hyperparameters that cannot work. Loads no model."""
        known = inspect.signature(cls).parameters.values()
        defaults = {one.name: None if one.default is one.empty else one.default for one in known}
        given = {**defaults, **hyperparameters}
        cls.check(given)
        if given.get("threshold") is not None:
            number("threshold", given["threshold"], low=0.0, high=1.0)

    @staticmethod  # noqa: B027 (many routers have nothing of their own to check)
    def check(given: Mapping[str, Any]) -> None:
        """The router's own part: ``given`` has all hyperparameters, as a constructor's ``locals()`` do."""

    @abstractmethod
    def score(self, query: Query) -> float:
        """Probability, from 0 to 1, that the edge's answer to the query will not do."""

    def score_row(self, data: Any) -> float:
        """The score of a row or response."""
        return self.score(query_of_row(data))

    def decide(self, data: Any) -> Decision:
        """Where the query of a row or response goes."""
        score = self.score_row(data)
        return Decision(score, bool(score >= self.threshold))

    def __call__(self, data: Any) -> bool:
        started = time.perf_counter()
        decision = self.decide(data)
        seconds = time.perf_counter() - started - decision.waited
        record = Routing({
            "router": type(self).__name__,
            "score": decision.score,
            "hard": decision.hard,
            "seconds": round(seconds, SECONDS_DIGITS) if self.timed else None,
            **({"reason": decision.reason} if decision.reason else {}),
            **decision.details,
        })  # fmt: skip
        self._leave(record, data)
        return decision.hard

    def _leave(self, record: Routing, data: Any) -> None:
        """Put the record where the model that answers finds it, and into an answer that there is already."""
        places = [place for place in (data, row_of(data)) if isinstance(place, dict)]
        if places and self.timed:
            query = query_of_row(data).to_json()
            given = json.dumps(self._given, sort_keys=True, default=lambda value: type(value).__name__)
            record.key = digest(
                [record["router"], given, query, str(record["score"]), bool(record["hard"]), current_repeat()]
            )
        for place in places:
            inside = isinstance(place, Response) and os.environ.get("RESULT_SAVED_URL")
            place["routing"] = settled(record, place, Journal.of_job()) if inside else record


def number(name: str, value: Any, *, low: float, high: float) -> float:
    """``value`` as a float. Raises UserError if it is not a number from ``low`` to ``high``."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise UserError(f"{name} must be a number from {low:g} to {high:g}, not {value!r}", key=name)
    return float(value)


def whole(name: str, value: Any, *, low: float = -math.inf, high: float = math.inf) -> None:
    """Raise UserError if ``value`` is not a whole number from ``low`` to ``high``."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        ends = [f" {word} {end:.0f}" for word, end in (("from", low), ("to", high)) if math.isfinite(end)]
        raise UserError(f"{name} must be a whole number{''.join(ends)}, not {value!r}", key=name)
