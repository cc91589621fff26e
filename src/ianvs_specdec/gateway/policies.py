"""Names of the router at other thresholds: ``router-0.3``, and ``router-30%`` for that share of the queries."""

from __future__ import annotations

import copy
import math
import re
from typing import Any

import numpy as np

from ianvs_specdec.routing.routers.base import Router
from ianvs_specdec.routing.routers.composed import ConstrainedRouter
from ianvs_specdec.serving.refusal import Models, Refusal

POLICY = re.compile(r"router-(\d{0,9}\.?\d{1,9})(%?)")
MODELS = Models(("router", "edge", "cloud"), POLICY)


def policy(router: Any, name: str) -> Any:
    """The router under one of its names: at another threshold a copy that shares the rest. Raises Refusal."""
    found = POLICY.fullmatch(name)
    if found is None:
        return router
    number = float(found[1]) / (100 if found[2] else 1)
    if number > 1:
        raise MODELS.unknown(name)
    if not isinstance(router, Router):
        raise _refused(name, f"{type(router).__name__} is no Router with a threshold")
    changed = decider = copy.copy(router)
    while isinstance(decider, ConstrainedRouter):
        decider.inner = copy.copy(decider.inner)
        decider = decider.inner
    decider.threshold = _threshold(decider, name, number) if found[2] else number
    return changed


def _threshold(router: Any, name: str, share: float) -> float:
    """The score from which on the ``share`` of the queries that it was tested with went to the cloud."""
    report = getattr(getattr(router, "trained", None), "report", {})
    quantiles = report.get("score_quantiles")
    if not quantiles:
        reason = f"the share of a {type(router).__name__} is not known: its folder has no score_quantiles"
        raise _refused(name, f"{reason}; name a threshold, such as router-0.3")
    if share in (0, 1):
        return 0.0 if share else math.inf
    return float(np.interp(1 - share, np.linspace(0, 1, len(quantiles)), quantiles))


def _refused(name: str, reason: str) -> Refusal:
    return Refusal(404, f"the model {name!r} does not exist here: {reason}", param="model", code="model_not_found")
