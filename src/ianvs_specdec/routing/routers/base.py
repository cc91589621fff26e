"""The contract of a router: a score per query, a threshold, and a record of each decision."""

from __future__ import annotations

import functools
import inspect
import json
import numbers
import os
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self, cast, get_type_hints

from pydantic import create_model

from ianvs_specdec.benchmarks.rows import query_of_row, row_of
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.settings import Settings, Share, validated
from ianvs_specdec.common.types import Query
from ianvs_specdec.plugin.routing_time import RoutingRecord, restore_routing_time
from ianvs_specdec.records.identity import digest
from ianvs_specdec.records.journal import Journal
from ianvs_specdec.records.response import Response
from ianvs_specdec.records.run import current_repeat

SHOWN = 60
"""Characters of a value or a question that a message shows."""
SECONDS_DIGITS = 9
"""A clock has nanoseconds."""

Modules = Mapping[str, tuple[Any, Mapping[str, Any]]]
"""Module type -> its class and hyperparameters."""


@dataclass(frozen=True)
class Decision:
    """``score``: probability that the edge's answer is not good enough; ``hard``: to the cloud. ``reason``: why the
    score did not decide; neither it nor ``details`` holds a part of the query's text. ``waited``: seconds of a model's
    answer before the decision; they do not count as the router's.
    """

    score: float
    hard: bool
    reason: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    waited: float = 0.0


class _Given:
    """Keeps a router's hyperparameters. With ``__new__`` in ``Router`` the signature of classes without a constructor
    would be ``(*args, **hyperparameters)``."""

    _given = ""

    def __new__(cls, *args: Any, **hyperparameters: Any) -> Self:
        router = super().__new__(cls)
        router._given = json.dumps(_in_json([args, hyperparameters]), sort_keys=True)
        return router


class Router(_Given, ABC):
    """Called by Ianvs with each row, or with the edge's response to it (mode inference-then-mining); True = hard =
    cloud. The decision is stored in both under ``routing``: ``router``, ``score``, ``hard``, ``seconds`` (None if not
    ``timed``), ``reason`` and the decision's details.

    Most routers are a ``score``. One that needs more than the query overrides ``score_row``, one with more than a
    threshold ``decide``.
    """

    timed: ClassVar[bool] = True
    built_by_check: ClassVar[bool] = False
    """Whether `ianvs check` builds it. The routers of this package check hyperparameters without loading a model."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        shipped = (base for base in cls.__mro__ if issubclass(base, Router) and base is not Router)
        cls.built_by_check = not any(base.__module__.startswith(f"{__package__}.") for base in shipped)

    def __init__(self, threshold: Share = 0.5) -> None:
        Router.check_hyperparameters(locals())
        self.threshold = float(threshold)

    @classmethod
    def check_hyperparameters(cls, hyperparameters: Mapping[str, Any]) -> None:
        """Raise UserError, with the ``key`` at fault, for hyperparameters that do not fit the types of the constructor.
        Of a user's constructor only ``threshold`` is known. Loads no model.
        """
        shipped = next((base for base in cls.__mro__ if base.__module__.startswith(f"{__package__}.")), Router)
        own = any("__init__" in vars(base) for base in cls.__mro__[: cls.__mro__.index(shipped)])
        known = declared(Router if own else shipped)
        validated(known, {name: value for name, value in hyperparameters.items() if name in known.model_fields})
        defaults = {name: field.default for name, field in known.model_fields.items() if not field.is_required()}
        if not own:
            for name, default in defaults.items():
                if default is not None and hyperparameters.get(name, default) is None:
                    raise UserError(f"{name} must not be null: leave it out for the default, {default!r}", key=name)
            cls.check_together({**defaults, **hyperparameters})

    @classmethod
    def check_test_case(cls, hyperparameters: Mapping[str, Any], modules: Modules) -> None:
        """Raise UserError, with the ``key`` at fault, if the router does not fit the ``modules`` of a test case."""

    @classmethod
    def check_together(cls, given: Mapping[str, Any]) -> None:
        """Raise UserError, with the ``key`` at fault, for values, defaults too, that exclude each other."""

    @abstractmethod
    def score(self, query: Query) -> float:
        """Probability, from 0 to 1, that the edge's answer to the query is not good enough."""

    def score_row(self, data: Any) -> float:
        return self.score(query_of_row(data))

    def decide(self, data: Any) -> Decision:
        """Where the query of a row or response goes. A score that cannot be compared is left to ``checked``."""
        score = self.score_row(data)
        plain = plain_score(score)
        return Decision(score, plain is not None and plain >= self.threshold)

    def checked(self, data: Any) -> Decision:
        """The decision with a plain float and bool. Raises UserError that names the router, its file and the query."""
        try:
            decision = self.decide(data)
        except Exception as error:
            # A UserError has its message, and errors of the package's own routers are faults of the package.
            if isinstance(error, UserError) or not self._is_own():
                raise
            raise UserError(f"{self._about(data)} failed: {describe_error(error)}") from error
        if not isinstance(decision, Decision):
            raise UserError(f"{self._about(data)}: decide must return a Decision, not {_shown(decision)}")
        score, hard = plain_score(decision.score), plain_bool(decision.hard)
        if score is None:
            raise UserError(
                f"{self._about(data)}: the score must be a number from 0 to 1 (1 = the edge's answer will not do), not "
                f"{_shown(decision.score)}"
            )
        if hard is None:
            raise UserError(f"{self._about(data)}: hard must be True or False, not {_shown(decision.hard)}")
        return replace(decision, score=score, hard=hard)

    def _is_own(self) -> bool:
        return not type(self).__module__.startswith(f"{__package__.partition('.')[0]}.")

    def _about(self, data: Any) -> str:
        """The router, with the file of a user's own, and the query; the host adds the row."""
        kind = type(self)
        place = f" ({_file_of(kind)})" if self._is_own() else ""
        try:
            query = query_of_row(data)
        except UserError:
            return f"router {kind.__name__}{place}"
        name = query.id or (query.turns[0] if len(query.turns[0]) <= SHOWN else query.turns[0][:SHOWN] + "...")
        return f"router {kind.__name__}{place}, query {name!r}"

    def __call__(self, data: Any) -> bool:
        started = time.perf_counter()
        decision = self.checked(data)
        seconds = time.perf_counter() - started - decision.waited
        record = RoutingRecord({
            "router": type(self).__name__,
            "score": decision.score,
            "hard": decision.hard,
            "seconds": round(seconds, SECONDS_DIGITS) if self.timed else None,
            **({"reason": decision.reason} if decision.reason else {}),
            **decision.details,
        })  # fmt: skip
        self._leave(record, data)
        return decision.hard

    def _leave(self, record: RoutingRecord, data: Any) -> None:
        """Put the record where the model that answers finds it, and into an answer that there is already."""
        places = [place for place in (data, row_of(data)) if isinstance(place, dict)]
        if places and self.timed:
            query = query_of_row(data).to_json()
            record.key = digest(
                [record["router"], self._given, query, str(record["score"]), bool(record["hard"]), current_repeat()]
            )
        for place in places:
            inside = isinstance(place, Response) and os.environ.get("RESULT_SAVED_URL")
            place["routing"] = restore_routing_time(record, place, Journal.of_job()) if inside else record


def _in_json(value: Any) -> Any:
    """Hyperparameters as JSON, alike in every run: a router by its own ones, another object by its class."""
    if isinstance(value, dict):
        return {repr(key): _in_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_in_json(item) for item in value]
    if isinstance(value, (str, int, float, type(None))):
        return value
    return [type(value).__name__, value._given if isinstance(value, _Given) else ""]


def plain_score(value: Any) -> float | None:
    """A number of Python, NumPy or PyTorch from 0 to 1 as a float. None for anything else."""
    value = _item(value)
    if not isinstance(value, (bool, numbers.Real)):
        return None
    try:
        score = float(value)
    except (OverflowError, ValueError):
        return None
    return score if 0 <= score <= 1 else None


def plain_bool(value: Any) -> bool | None:
    """A bool of Python, NumPy or PyTorch. None for anything else."""
    value = _item(value)
    return value if isinstance(value, bool) else None


def _item(value: Any) -> Any:
    """The number in a scalar of numpy or torch, anything else as it is."""
    if getattr(value, "ndim", None) != 0 or not hasattr(value, "item"):
        return value
    return value.item()


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def describe_error(error: BaseException, *, message: bool = True) -> str:
    """The error, and the line at which it was raised. Its message may hold the text of a query."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}{f': {error}' if message else ''}{place}"


def _file_of(kind: type) -> str:
    try:
        return os.path.relpath(inspect.getfile(kind))
    except (TypeError, OSError, ValueError):
        return kind.__module__


@functools.cache
def declared(kind: type[Router]) -> type[Settings]:
    """The hyperparameters of a router, by the types of its constructor's parameters."""
    parameters, hints = inspect.signature(kind).parameters, get_type_hints(kind.__init__, include_extras=True)
    taken = [one for one in parameters.values() if one.kind is one.POSITIONAL_OR_KEYWORD]
    fields = {one.name: (hints[one.name], ... if one.default is one.empty else one.default) for one in taken}
    return create_model(kind.__name__, __base__=Settings, **cast(dict[str, Any], fields))
