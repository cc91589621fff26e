"""The signals that a cascade weighs, and those of the beginning of an answer."""

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


def doubt_of(given: Mapping[str, Any]) -> Doubt:
    """The signals that CascadeRouter weighs, by its hyperparameters. Raises UserError with the ``key`` at fault."""
    signal, calibration = given.get("signal"), given.get("calibration")
    fitted = None if calibration is None else Doubt.load(Path(calibration))
    if signal is None and fitted is None:
        known = ", ".join(SIGNALS)
        raise UserError(f"CascadeRouter needs a signal to look at, or a calibration; signals: {known}", key="signal")
    if signal is None:
        assert fitted is not None
        signal = fitted.signals
    names = (signal,) if isinstance(signal, str) else tuple(signal)
    _check_names(names, given.get(PRIOR) is not None, given.get("routers") or {})
    if given.get("decide_after") is not None:
        _check_beginning(given, fitted)
    if fitted is None:
        return Doubt(names)
    if set(names) != set(fitted.signals):
        there = ", ".join(fitted.signals)
        raise UserError(f"{calibration} is for other signals ({there}); leave signal out, or fit anew", key="signal")
    return fitted


def _check_names(names: Sequence[str], prior: bool, routers: Mapping[str, str]) -> None:
    for name in routers:
        if name in (*SIGNALS, PRIOR):
            raise UserError(f"routers: {name} is the name of another signal", key="routers")
    for name in names:
        if name not in (*SIGNALS, PRIOR, *routers):
            raise unknown("signal", name, (*SIGNALS, PRIOR, *routers), key="signal")
    if PRIOR in names and not prior:
        raise UserError(f"the signal {PRIOR} is the score of another router: name that under {PRIOR}", key="signal")
    for name in (*([PRIOR] if prior else ()), *routers):
        if name not in names:
            more = f"{name} is given, and is none of the signals ({', '.join(names)}): add {name} to them"
            raise UserError(more, key=PRIOR if name == PRIOR else "routers")


def _check_beginning(given: Mapping[str, Any], fitted: Doubt | None) -> None:
    after = given["decide_after"]
    if fitted is None or fitted.after is None or fitted.after.tokens != after:
        there = f"; {given['calibration']} has {fitted.after.tokens}" if fitted and fitted.after else ""
        wanted = f"a calibration that specdec route calibrate --after {after} made"
        raise UserError(f"decide_after: {after} needs {wanted}{there}", key="decide_after")
    if given.get("threshold") is not None:
        reason = "was fitted together with the calibration's threshold: leave threshold out, or fit anew"
        raise UserError(f"what decide_after makes of the first tokens {reason}", key="threshold")
