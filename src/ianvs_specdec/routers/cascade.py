"""CascadeRouter: the edge answers first, and what its answer leaves in doubt goes to the cloud."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from ianvs_specdec.errors import UserError, unknown
from ianvs_specdec.learned.doubt import Doubt
from ianvs_specdec.plugin import edge_first
from ianvs_specdec.plugin.models import EdgeModel
from ianvs_specdec.routers import build_router, check_router, check_router_beside
from ianvs_specdec.routers import router as router_named
from ianvs_specdec.routers.base import Decision, Modules, Router
from ianvs_specdec.routers.composed import ConstrainedRouter
from ianvs_specdec.routers.learned import UNANSWERED, LearnedRouter
from ianvs_specdec.routers.signals import SIGNALS, check_edge
from ianvs_specdec.types import Query

PRIOR = "router"
"""The name that stands for the score of another router."""


class CascadeRouter(Router):
    """The score says how much the edge's answer is in doubt. In the mode inference-then-mining Ianvs asks the edge
    first; in the mode mining-then-inference the router does, and the edge's work counts all the same.

    - ``signal``: what to look at, one of ``signals.SIGNALS`` or several; of several, the score is the mean;
    - ``calibration``: a file that `specdec route calibrate` fitted (see ``doubt``): the score then is the probability
      that the cloud's answer is better. It knows its signals and its threshold, so that ``signal`` may be left out;
    - ``router``: another router, a name or a mapping with ``name`` and hyperparameters, whose score of the query is one
      of the signals under the name ``router``. None with a constraint, which would not be kept to: put that one around
      the cascade. A probe looks at the edge before that answers, so that the router has to be asked first then;
    - ``threshold``: from which score on a query goes to the cloud.

    A query that the edge could not answer goes to the cloud, whatever the signal.
    """

    concurrent: ClassVar[bool] = True

    def __init__(
        self,
        signal: str | list[str] | None = None,
        threshold: float | None = None,
        calibration: str | None = None,
        router: Any = None,
    ) -> None:
        self.doubt = _doubt(signal, calibration, router)
        super().__init__(self.doubt.threshold if threshold is None else threshold)
        self.prior = None if router is None else build_router(router)
        _check_prior(type(self.prior))
        self._asking = nullcontext() if getattr(self.prior, "concurrent", True) else threading.Lock()

    @staticmethod
    def check(given: Mapping[str, Any]) -> None:
        router = given["router"]
        _doubt(given["signal"], given["calibration"], router)
        if router is not None:
            check_router(router)
            _check_prior(router_named(router if isinstance(router, str) else router["name"]))

    @classmethod
    def check_test_case(cls, hyperparameters: Mapping[str, Any], modules: Modules) -> None:
        router = hyperparameters.get("router")
        if router is not None:
            check_router_beside(router, modules)
        kind, settings = modules.get("edgemodel", (None, {}))
        if isinstance(kind, type) and issubclass(kind, EdgeModel):
            doubt = _doubt(hyperparameters.get("signal"), hyperparameters.get("calibration"), router)
            check_edge(doubt.signals, settings)

    def score(self, query: Query) -> float:
        raise UserError("CascadeRouter needs the edge's answer: give it the row or the response, not the query alone")

    def score_row(self, data: Any) -> float:
        return self.decide(data).score

    def decide(self, data: Any) -> Decision:
        probed = None
        if isinstance(self.prior, LearnedRouter) and self.prior.probes:
            probed = self.prior.decide(data)
            if probed.reason == UNANSWERED:
                return probed
        if isinstance(data, Mapping) and "turns" in data and "completion" in data:
            return self._judge(data)
        started = time.perf_counter()
        response = edge_first.ask(data)
        waited = time.perf_counter() - started
        if probed is None:
            return replace(self._judge(response), waited=waited)
        return replace(self._judge(response, probed.score), waited=waited + probed.waited)

    def _judge(self, response: Mapping[str, Any], prior: float | None = None) -> Decision:
        """``prior``: the score of the router inside, where it is known already."""
        if response.get("error") or not response["turns"]:
            return Decision(1.0, True, UNANSWERED)
        known = {} if prior is None else {PRIOR: prior}
        doubts = {**{name: self._signal(name, response) for name in self.doubt.signals if name not in known}, **known}
        score = self.doubt.score(doubts)
        return Decision(score, score >= self.threshold, details={"doubts": doubts})

    def _signal(self, name: str, response: Mapping[str, Any]) -> float:
        if name != PRIOR:
            return SIGNALS[name](response)
        assert self.prior is not None
        with self._asking:
            return self.prior.score_row(response)


def _check_prior(kind: type[Any]) -> None:
    if issubclass(kind, ConstrainedRouter):
        raise UserError(
            f"CascadeRouter takes no more than a score from the router inside, and {kind.__name__} has a constraint: "
            f"put CascadeRouter under router: of {kind.__name__}",
            key="router",
        )


def _doubt(signal: Any, calibration: Any, router: Any) -> Doubt:
    """What to make of which signals. Raises UserError with the ``key`` at fault."""
    if calibration is not None and (not isinstance(calibration, str) or not calibration):
        reason = f"calibration must name a file, not {calibration!r}; specdec route calibrate makes one"
        raise UserError(reason, key="calibration")
    fitted = None if calibration is None else Doubt.load(Path(calibration))
    if signal is None and fitted is None:
        known = ", ".join(SIGNALS)
        raise UserError(f"CascadeRouter needs a signal to look at, or a calibration; signals: {known}", key="signal")
    names = fitted.signals if signal is None and fitted is not None else _names(signal)
    for name in names:
        if name not in (*SIGNALS, PRIOR):
            raise unknown("signal", name, (*SIGNALS, PRIOR), key="signal")
    if (PRIOR in names) != (router is not None):
        lack = f"the signal {PRIOR} is the score of another router: name that under {PRIOR}"
        more = f"{PRIOR} is given, and is none of the signals ({', '.join(names)}): add {PRIOR} to them"
        raise UserError(lack if router is None else more, key="signal" if router is None else PRIOR)
    if fitted is None:
        return Doubt(names)
    if set(names) != set(fitted.signals):
        there = ", ".join(fitted.signals)
        raise UserError(f"{calibration} is for other signals ({there}); leave signal out, or fit anew", key="signal")
    return fitted


def _names(signal: Any) -> tuple[str, ...]:
    names = [signal] if isinstance(signal, str) else signal
    if not isinstance(names, (list, tuple)) or not names or len(set(map(str, names))) < len(names):
        raise UserError(
            f"signal must be the name of a signal or a list of different ones, not {signal!r}", key="signal"
        )
    return tuple(map(str, names))
