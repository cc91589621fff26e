"""Names of the router at other thresholds: ``router-0.3``, and ``router-30%`` for that share of the queries."""

from __future__ import annotations

import copy
import math
import re
from typing import Any

import numpy as np

from ianvs_specdec.routing.routers.base import Router
from ianvs_specdec.routing.routers.composed import ConstrainedRouter
from ianvs_specdec.serving.refusal import Refusal

POLICY = re.compile(r"router-(0?\.\d{1,9}|0|1(?:\.0{1,9})?|(?P<percent>\d{1,2}(?:\.\d{1,9})?|100)%)")


class Policies(tuple[str, ...]):
    """Names of models. Those at another threshold are among them, and not listed."""

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or POLICY.fullmatch(str(name)) is not None


MODELS = Policies(("router", "edge", "cloud"))


def policy(router: Any, name: str) -> Any:
    """The router under one of its names: at another threshold a copy that shares the rest. Raises Refusal."""
    found = POLICY.fullmatch(name)
    if found is None:
        return router
    changed = decider = copy.copy(router)
    while isinstance(decider, ConstrainedRouter):
        decider.inner = copy.copy(decider.inner)
        decider = decider.inner
    report = getattr(getattr(decider, "trained", None), "report", {})
    quantiles = report.get("score_quantiles")
    if not isinstance(decider, Router) or (found["percent"] and not quantiles):
        lack = "score_quantiles in a folder of its own" if found["percent"] else "a threshold"
        message = f"the model {name!r} does not exist here: {type(decider).__name__} has no {lack}"
        raise Refusal(404, message, param="model", code="model_not_found")
    decider.threshold = _threshold(float(found["percent"]) / 100, quantiles) if found["percent"] else float(found[1])
    return changed


def _threshold(share: float, quantiles: Any) -> float:
    """The score from which on that share of the queries that the router was tested with goes to the cloud."""
    if share in (0, 1):
        return 0.0 if share else math.inf
    return float(np.interp(1 - share, np.linspace(0, 1, len(quantiles)), quantiles))
