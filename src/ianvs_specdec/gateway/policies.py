"""Names of the router at other thresholds: ``router-0.3``, and ``router-30%`` for that share of the queries."""

from __future__ import annotations

import copy
import math
import re
from typing import Any, Self

import numpy as np

from ianvs_specdec.routing.routers.base import Router
from ianvs_specdec.routing.routers.composed import ConstrainedRouter
from ianvs_specdec.serving.protocol import Refusal

MODELS = ("router", "edge", "cloud")
POLICY = re.compile(r"router-([0-9]+(?:\.[0-9]+)?|\.[0-9]+)(%?)")


class Policies(tuple[str, ...]):
    """Names of models. Those of the ``router`` at another threshold are among them, and not listed."""

    router: Any

    def __new__(cls, router: Any) -> Self:
        models = super().__new__(cls, MODELS)
        models.router = router
        return models

    def __contains__(self, name: object) -> bool:
        """Raises Refusal for a name of a threshold that the router does not take."""
        return super().__contains__(name) or policy(self.router, str(name)) is not self.router


def policy(router: Any, name: str) -> Any:
    """The router under one of its names: at another threshold a copy that shares the rest. Raises Refusal."""
    if not name.startswith("router-"):
        return router
    found = POLICY.fullmatch(name)
    percent = found is not None and bool(found[2])
    value = math.nan if found is None else float(found[1]) / (100 if percent else 1)
    if not 0 <= value <= 1:
        forms = f"this server has {', '.join(map(repr, MODELS))}, and thresholds such as router-0.3 and router-30%"
        raise _unknown(name, f"here; {forms}")
    changed = decider = copy.copy(router)
    while isinstance(decider, ConstrainedRouter):
        decider.inner = copy.copy(decider.inner)
        decider = decider.inner
    report = getattr(getattr(decider, "trained", None), "report", {})
    quantiles = report.get("score_quantiles")
    if not isinstance(decider, Router) or (percent and not quantiles):
        lack = "score_quantiles in a folder of its own" if percent else "a threshold"
        raise _unknown(name, f"here: {type(decider).__name__} has no {lack}")
    decider.threshold = _threshold(value, quantiles) if percent else value
    return changed


def _unknown(name: str, why: str) -> Refusal:
    return Refusal(404, f"the model {name[:256]!r} does not exist {why}", param="model", code="model_not_found")


def _threshold(share: float, quantiles: Any) -> float:
    """The score from which on that share of the queries that the router was tested with goes to the cloud."""
    if share in (0, 1):
        return 0.0 if share else math.inf
    return float(np.interp(1 - share, np.linspace(0, 1, len(quantiles)), quantiles))
