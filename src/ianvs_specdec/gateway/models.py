"""Names of the models of a gateway: ``router``, ``edge``, ``cloud``, and the router at other thresholds.

``router-0.3`` is the threshold 0.3, ``router-30%`` the threshold that sends 30 % of the queries to the cloud.
"""

from __future__ import annotations

import copy
import math
import re
from typing import Any, Self

import numpy as np

from ianvs_specdec.routing.routers.base import Router
from ianvs_specdec.routing.routers.constrained import ConstrainedRouter
from ianvs_specdec.serving.protocol import RequestError

MODELS = ("router", "edge", "cloud")
THRESHOLD = re.compile(r"router-([0-9]+(?:\.[0-9]+)?|\.[0-9]+)(%?)")


class ModelNames(tuple[str, ...]):
    """``MODELS``. Contains the names of other thresholds, too, without listing them."""

    router: Any

    def __new__(cls, router: Any) -> Self:
        models = super().__new__(cls, MODELS)
        models.router = router
        return models

    def __contains__(self, name: object) -> bool:
        """Raises RequestError for a threshold that the router does not support."""
        return super().__contains__(name) or router_named(self.router, str(name)) is not self.router


def router_named(router: Any, name: str) -> Any:
    """The router, or a copy at the threshold in ``name`` that shares its state. Raises RequestError."""
    if not name.startswith("router-"):
        return router
    found = THRESHOLD.fullmatch(name)
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
        missing = "folder with score_quantiles" if percent else "threshold"
        raise _unknown(name, f"here: {type(decider).__name__} has no {missing}")
    decider.threshold = _threshold(value, quantiles) if percent else value
    return changed


def _unknown(name: str, why: str) -> RequestError:
    return RequestError(404, f"the model {name[:256]!r} does not exist {why}", param="model", code="model_not_found")


def _threshold(share: float, quantiles: Any) -> float:
    """The threshold that sends this share of the held-out queries to the cloud."""
    if share in (0, 1):
        return 0.0 if share else math.inf
    return float(np.interp(1 - share, np.linspace(0, 1, len(quantiles)), quantiles))
