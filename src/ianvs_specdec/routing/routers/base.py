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
"""Maximum number of characters of a value or question in a message."""
SECONDS_DIGITS = 9
"""The resolution of the clock: nanoseconds."""

Modules = Mapping[str, tuple[Any, Mapping[str, Any]]]
"""Module type -> its class and hyperparameters."""


@dataclass(frozen=True)
class Decision:
    """``score``: probability that the edge's answer is not good enough; ``hard``: whether the query goes to the cloud;
    ``reason``: set if the score did not decide; ``waited``: seconds of waiting for a model, which are not counted as
    the router's time. ``reason`` and ``details`` contain no text of the query.
    """

    score: float
    hard: bool
    reason: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    waited: float = 0.0


class _Given:
    """Records the arguments of a router's constructor. ``__new__`` is not in ``Router``, since it would change the
    signature of subclasses without a constructor."""

    _given = ""

    def __new__(cls, *args: Any, **hyperparameters: Any) -> Self:
        router = super().__new__(cls)
        router._given = json.dumps(_in_json([args, hyperparameters]), sort_keys=True)
        return router


class Router(_Given, ABC):
    """Called by Ianvs with a row, or with the edge's response (mode inference-then-mining). True: to the cloud.

    Stores the decision in both under ``routing``: ``router``, ``score``, ``hard``, ``seconds`` (None if not ``timed``),
    ``reason`` and the details. Most routers implement ``score``. Override ``score_row`` to use more than the query, and
    ``decide`` for more than a threshold.
    """

    timed: ClassVar[bool] = True
    built_by_check: ClassVar[bool] = False
    """Whether `ianvs check` constructs the router: only users' routers, whose constructors are the only check."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        shipped = (base for base in cls.__mro__ if issubclass(base, Router) and base is not Router)
        cls.built_by_check = not any(base.__module__.startswith(f"{__package__}.") for base in shipped)

    def __init__(self, threshold: Share = 0.5) -> None:
        Router.check_hyperparameters(locals())
        self.threshold = float(threshold)

    @classmethod
    def check_hyperparameters(cls, hyperparameters: Mapping[str, Any]) -> None:
        """Raise UserError with the ``key`` of an invalid hyperparameter, by the annotations of the constructor.

        For a user's constructor only ``threshold`` is checked. Loads no model.
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
        """Raise UserError with the ``key`` if the router is incompatible with the ``modules`` of a test case."""

    @classmethod
    def check_together(cls, given: Mapping[str, Any]) -> None:
        """Raise UserError with the ``key`` for incompatible values. ``given`` includes the defaults."""

    @abstractmethod
    def score(self, query: Query) -> float:
        """Probability, from 0 to 1, that the edge's answer to the query is not good enough."""

    def score_row(self, data: Any) -> float:
        return self.score(query_of_row(data))

    def decide(self, data: Any) -> Decision:
        """Decide on a row or response. ``checked`` reports an invalid score."""
        score = self.score_row(data)
        plain = plain_score(score)
        return Decision(score, plain is not None and plain >= self.threshold)

    def checked(self, data: Any) -> Decision:
        """The validated decision. Raises UserError with the router, its file and the query."""
        try:
            decision = self.decide(data)
        except Exception as error:
            # Other errors of the package's own routers are bugs.
            if isinstance(error, UserError) or not self._is_own():
                raise
            raise UserError(f"{self._about(data)} failed: {describe_error(error)}") from error
        if not isinstance(decision, Decision):
            raise UserError(f"{self._about(data)}: decide must return a Decision, not {_shown(decision)}")
        score, hard = plain_score(decision.score), plain_bool(decision.hard)
        if score is None:
            raise UserError(
                f"{self._about(data)}: the score must be a number from 0 to 1 (1: the cloud is needed), not "
                f"{_shown(decision.score)}"
            )
        if hard is None:
            raise UserError(f"{self._about(data)}: hard must be True or False, not {_shown(decision.hard)}")
        return replace(decision, score=score, hard=hard)

    def _is_own(self) -> bool:
        return not type(self).__module__.startswith(f"{__package__.partition('.')[0]}.")

    def _about(self, data: Any) -> str:
        """The router, the file of a user's router, and the query. The host adds the row."""
        kind = type(self)
        location = f" ({_file_of(kind)})" if self._is_own() else ""
        try:
            query = query_of_row(data)
        except UserError:
            return f"router {kind.__name__}{location}"
        name = query.id or (query.turns[0] if len(query.turns[0]) <= SHOWN else query.turns[0][:SHOWN] + "...")
        return f"router {kind.__name__}{location}, query {name!r}"

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
        self._store(record, data)
        return decision.hard

    def _store(self, record: RoutingRecord, data: Any) -> None:
        """Store the record in the row, where the model finds it, and in the edge's response if there is one."""
        targets = [target for target in (data, row_of(data)) if isinstance(target, dict)]
        if targets and self.timed:
            query = query_of_row(data).to_json()
            record.key = digest(
                [record["router"], self._given, query, str(record["score"]), bool(record["hard"]), current_repeat()]
            )
        for target in targets:
            inside = isinstance(target, Response) and os.environ.get("RESULT_SAVED_URL")
            target["routing"] = restore_routing_time(record, target, Journal.of_job()) if inside else record


def _in_json(value: Any) -> Any:
    """Hyperparameters as reproducible JSON. Routers are replaced by theirs, other objects by their class."""
    if isinstance(value, dict):
        return {repr(key): _in_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_in_json(item) for item in value]
    if isinstance(value, (str, int, float, type(None))):
        return value
    return [type(value).__name__, value._given if isinstance(value, _Given) else ""]


def plain_score(value: Any) -> float | None:
    """A Python, NumPy or PyTorch number from 0 to 1 as a float, else None."""
    value = _item(value)
    if not isinstance(value, (bool, numbers.Real)):
        return None
    try:
        score = float(value)
    except (OverflowError, ValueError):
        return None
    return score if 0 <= score <= 1 else None


def plain_bool(value: Any) -> bool | None:
    """A Python, NumPy or PyTorch bool, else None."""
    value = _item(value)
    return value if isinstance(value, bool) else None


def _item(value: Any) -> Any:
    """The Python value of a NumPy or PyTorch scalar, or the value itself."""
    if getattr(value, "ndim", None) != 0 or not hasattr(value, "item"):
        return value
    return value.item()


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def describe_error(error: BaseException, *, message: bool = True) -> str:
    """The error and the line that raised it. The message may contain the text of a query."""
    frames = traceback.extract_tb(error.__traceback__)
    location = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}{f': {error}' if message else ''}{location}"


def _file_of(kind: type) -> str:
    try:
        return os.path.relpath(inspect.getfile(kind))
    except (TypeError, OSError, ValueError):
        return kind.__module__


@functools.cache
def declared(kind: type[Router]) -> type[Settings]:
    """A settings class with the parameters of a router's constructor."""
    parameters, hints = inspect.signature(kind).parameters, get_type_hints(kind.__init__, include_extras=True)
    accepted = [one for one in parameters.values() if one.kind is one.POSITIONAL_OR_KEYWORD]
    fields = {one.name: (hints[one.name], ... if one.default is one.empty else one.default) for one in accepted}
    return create_model(kind.__name__, __base__=Settings, **cast(dict[str, Any], fields))
