"""What a cascade is to make of which signals, and what of them the beginning of an answer shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ianvs_specdec.common.errors import UserError, unknown
from ianvs_specdec.common.types import Completion, Query
from ianvs_specdec.plugin.response import response_of, turn_of
from ianvs_specdec.records.response import Response
from ianvs_specdec.routing.learned.doubt import Doubt
from ianvs_specdec.routing.routers.signals import SIGNALS

PRIOR = "router"
"""The name that stands for the score of another router."""
OF_WHOLE = ("disagreement",)
"""Signals that need the whole answer."""


def of_beginning(names: Sequence[str], query: Query, begun: Completion, known: Mapping[str, float]) -> dict[str, float]:
    """The signals with these ``names``, from 0 to 1, of the first tokens of the edge's answer to the first turn.
    ``known``: the scores of routers."""
    response = response_of(query, [begun], [turn_of(begun, replayed=False, cached=False)])
    response.row = Response(query=query.to_json())
    return {name: known[name] if name in known else SIGNALS[name](response) for name in names}


def folders_of(routers: Any) -> dict[str, str]:
    """The folders of trained routers by the names of their signals. Raises UserError."""
    told = {} if routers is None else routers
    parts = [part for item in told.items() for part in item] if isinstance(told, Mapping) else [None]
    if not all(isinstance(part, str) and part for part in parts):
        reason = "routers must be a mapping from names of signals to folders that specdec route train made"
        raise UserError(f"{reason}, not {routers!r}", key="routers")
    for name in told:
        if name in (*SIGNALS, PRIOR):
            raise UserError(f"routers: {name} is the name of another signal", key="routers")
    return dict(told)


def doubt_of(given: Mapping[str, Any]) -> Doubt:
    """What CascadeRouter is to make of which signals, by its hyperparameters. Raises UserError with the ``key`` at
    fault."""
    signal, calibration, router, routers = (given.get(name) for name in ("signal", "calibration", PRIOR, "routers"))
    if calibration is not None and (not isinstance(calibration, str) or not calibration):
        reason = f"calibration must name a file, not {calibration!r}; specdec route calibrate makes one"
        raise UserError(reason, key="calibration")
    fitted = None if calibration is None else Doubt.load(Path(calibration))
    if signal is None and fitted is None:
        known = ", ".join(SIGNALS)
        raise UserError(f"CascadeRouter needs a signal to look at, or a calibration; signals: {known}", key="signal")
    names = fitted.signals if signal is None and fitted is not None else _names(signal)
    _check_names(names, {PRIOR: router is not None, **dict.fromkeys(folders_of(routers), True)})
    _check_beginning(given, fitted)
    if fitted is None:
        return Doubt(names)
    if set(names) != set(fitted.signals):
        there = ", ".join(fitted.signals)
        raise UserError(f"{calibration} is for other signals ({there}); leave signal out, or fit anew", key="signal")
    return fitted


def _check_names(names: Sequence[str], priors: Mapping[str, bool]) -> None:
    """``priors``: of the signals that are scores of routers, whether the router is given."""
    for name in names:
        if name not in (*SIGNALS, *priors):
            raise unknown("signal", name, (*SIGNALS, *priors), key="signal")
    for name, there in priors.items():
        key = PRIOR if name == PRIOR else "routers"
        if there and name not in names:
            more = f"{name} is given, and is none of the signals ({', '.join(names)}): add {name} to them"
            raise UserError(more, key=key)
        if name in names and not there:
            raise UserError(f"the signal {name} is the score of another router: name that under {PRIOR}", key="signal")


def _check_beginning(given: Mapping[str, Any], fitted: Doubt | None) -> None:
    after, key = given.get("decide_after"), "decide_after"
    if after is None:
        return
    if type(after) is not int or after < 1:
        raise UserError(f"decide_after must be a whole number of tokens from 1, not {after!r}", key=key)
    if fitted is None or fitted.after is None or fitted.after.tokens != after:
        there = f"; {given['calibration']} has {fitted.after.tokens}" if fitted and fitted.after else ""
        wanted = f"a calibration that specdec route calibrate --after {after} made"
        raise UserError(f"decide_after: {after} needs {wanted}{there}", key=key)
    if given.get("threshold") is not None:
        reason = "was fitted together with the calibration's threshold: leave threshold out, or fit anew"
        raise UserError(f"what decide_after makes of the first tokens {reason}", key="threshold")


def _names(signal: Any) -> tuple[str, ...]:
    names = [signal] if isinstance(signal, str) else signal
    if not isinstance(names, (list, tuple)) or not names or len(set(map(str, names))) < len(names):
        raise UserError(
            f"signal must be the name of a signal or a list of different ones, not {signal!r}", key="signal"
        )
    return tuple(map(str, names))
