"""CascadeRouter: the edge answers first, and what its answer leaves in doubt goes to the cloud."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from ianvs_specdec.backends import backend, resolve
from ianvs_specdec.benchmarks.rows import query_of_row
from ianvs_specdec.common.errors import UserError, unknown
from ianvs_specdec.common.settings import Count, Share, Text, described_as, validator
from ianvs_specdec.common.types import Completion, Query
from ianvs_specdec.plugin import edge_first
from ianvs_specdec.plugin.models import EdgeModel
from ianvs_specdec.plugin.requests import EarlyExit
from ianvs_specdec.plugin.response import response_of, turn_of
from ianvs_specdec.records.response import Response
from ianvs_specdec.routing.learned.folder import is_probe, read_settings
from ianvs_specdec.routing.learned.uncertainty import UncertaintyModel
from ianvs_specdec.routing.routers import build_router, check_router, check_router_in_test_case
from ianvs_specdec.routing.routers import router as router_named
from ianvs_specdec.routing.routers.base import Decision, Modules, Router
from ianvs_specdec.routing.routers.constrained import ConstrainedRouter
from ianvs_specdec.routing.routers.learned import UNANSWERED, LearnedRouter
from ianvs_specdec.routing.routers.signals import SIGNALS, check_edge

ROUTER_SIGNAL = "router"
"""The name that stands for the score of another router."""
WHOLE_ANSWER_SIGNALS = ("disagreement",)
"""Signals that need the whole answer."""


def early_signals(
    names: Sequence[str], query: Query, begun: Completion, known: Mapping[str, float]
) -> dict[str, float]:
    """The signals with these ``names``, from 0 to 1, of the first tokens of the edge's answer to the first turn.
    ``known``: the scores of routers."""
    response = response_of(query, [begun], [turn_of(begun, replayed=False, cached=False)])
    response.row = Response(query=query.to_json())
    return {name: known[name] if name in known else SIGNALS[name](response) for name in names}


def model_of(given: Mapping[str, Any]) -> UncertaintyModel:
    """The signals that CascadeRouter weighs, by its hyperparameters. Raises UserError with the ``key`` at fault."""
    signal, calibration = given.get("signal"), given.get("calibration")
    fitted = None if calibration is None else UncertaintyModel.load(Path(calibration))
    if signal is None and fitted is None:
        known = ", ".join(SIGNALS)
        raise UserError(f"CascadeRouter needs a signal to look at, or a calibration; signals: {known}", key="signal")
    if signal is None:
        assert fitted is not None
        signal = fitted.signals
    names = (signal,) if isinstance(signal, str) else tuple(signal)
    _check_names(names, given.get(ROUTER_SIGNAL) is not None, given.get("routers") or {})
    if given.get("decide_after") is not None:
        _check_beginning(given, fitted)
    if fitted is None:
        return UncertaintyModel(names)
    if set(names) != set(fitted.signals):
        there = ", ".join(fitted.signals)
        raise UserError(f"{calibration} is for other signals ({there}); leave signal out, or fit anew", key="signal")
    return fitted


def _check_names(names: Sequence[str], prior: bool, routers: Mapping[str, str]) -> None:
    for name in routers:
        if name in (*SIGNALS, ROUTER_SIGNAL):
            raise UserError(f"routers: {name} is the name of another signal", key="routers")
    for name in names:
        if name not in (*SIGNALS, ROUTER_SIGNAL, *routers):
            raise unknown("signal", name, (*SIGNALS, ROUTER_SIGNAL, *routers), key="signal")
    if ROUTER_SIGNAL in names and not prior:
        raise UserError(
            f"the signal {ROUTER_SIGNAL} is the score of another router: name that under {ROUTER_SIGNAL}", key="signal"
        )
    for name in (*([ROUTER_SIGNAL] if prior else ()), *routers):
        if name not in names:
            more = f"{name} is given, and is none of the signals ({', '.join(names)}): add {name} to them"
            raise UserError(more, key=ROUTER_SIGNAL if name == ROUTER_SIGNAL else "routers")


def _check_beginning(given: Mapping[str, Any], fitted: UncertaintyModel | None) -> None:
    after = given["decide_after"]
    if fitted is None or fitted.early is None or fitted.early.tokens != after:
        there = f"; {given['calibration']} has {fitted.early.tokens}" if fitted and fitted.early else ""
        wanted = f"a calibration that specdec route calibrate --after {after} made"
        raise UserError(f"decide_after: {after} needs {wanted}{there}", key="decide_after")
    if given.get("threshold") is not None:
        reason = "was fitted together with the calibration's threshold: leave threshold out, or fit anew"
        raise UserError(f"what decide_after makes of the first tokens {reason}", key="threshold")


def _check_different(signal: str | list[str]) -> None:
    if not signal or (len(set(signal)) < len(signal) and not isinstance(signal, str)):
        raise ValueError(f"must be the name of a signal or a list of different ones, not {signal!r}")


def _check_prior(value: Any) -> None:
    check_router(value)
    kind = router_named(value if isinstance(value, str) else value["name"])
    if issubclass(kind, ConstrainedRouter):
        raise UserError(
            f"CascadeRouter takes no more than a score from the router inside, and {kind.__name__} has a constraint: "
            f"put CascadeRouter under router: of {kind.__name__}",
            key="router",
        )


def _check_folders(folders: Mapping[str, str]) -> None:
    for name, folder in folders.items():
        try:
            read_settings(Path(folder))
        except UserError as error:
            raise UserError(f"{name}: {error}", key="routers") from error


Signals = Annotated[
    str | list[str], validator(_check_different), described_as("the name of a signal or a list of different ones")
]
Prior = Annotated[Any, validator(_check_prior)]
Priors = Annotated[
    dict[Text, Text],
    validator(_check_folders),
    described_as("a mapping from names of signals to folders that specdec route train made"),
]


class CascadeRouter(Router):
    """In the mode inference-then-mining Ianvs asks the edge first; in the mode mining-then-inference the router does.

    - ``signal``: one or several of ``signals.SIGNALS``; the score is their mean;
    - ``calibration``: a file of `specdec route calibrate` with signals and threshold: the score is the
      probability that the cloud's answer is better;
    - ``router``: another router without a constraint, whose score is the signal ``router``;
    - ``routers``: name of a signal -> folder of a trained router. One of all may be a probe;
    - ``decide_after``: the edge generates this number of tokens first. If the calibration for that number (``--after``)
      finds them in doubt, the answer ends there with that score; else a second request continues it.

    Signals are computed in the order of their costs: routers that read the text, the probe, the edge's answer. A query
    that the edge could not answer goes to the cloud.
    """

    concurrent: ClassVar[bool] = True

    def __init__(
        self,
        signal: Signals | None = None,
        threshold: Share | None = None,
        calibration: Annotated[str, described_as("a file that specdec route calibrate made")] | None = None,
        router: Prior | None = None,
        routers: Priors | None = None,
        decide_after: Count | None = None,
    ) -> None:
        given = locals()
        self.check_hyperparameters(given)
        self.model = model_of(given)
        super().__init__(self.model.threshold if threshold is None else threshold)
        self.early = None if decide_after is None else self.model.early
        signal_routers: dict[str, Any] = {} if router is None else {ROUTER_SIGNAL: build_router(router)}
        signal_routers |= {name: LearnedRouter(folder) for name, folder in (routers or {}).items()}
        # What the edge has to read the question for comes last.
        self.signal_routers = dict(sorted(signal_routers.items(), key=lambda item: _probes(item[1])))
        self._asking = {
            name: nullcontext() if getattr(prior, "concurrent", True) else threading.Lock()
            for name, prior in self.signal_routers.items()
        }

    @classmethod
    def check_together(cls, given: Mapping[str, Any]) -> None:
        model_of(given)
        router, folders = given["router"], dict(given["routers"] or {})
        if isinstance(router, Mapping) and router["name"] in (LearnedRouter.__name__, "LifelongRouter"):
            folders = {ROUTER_SIGNAL: router["path"], **folders}
        probes = [name for name, folder in folders.items() if is_probe(Path(folder))]
        if len(probes) > 1:
            reason = f"the edge reads a question for one probe, and {' and '.join(probes)} are probes: name one of them"
            raise UserError(f"CascadeRouter: {reason}", key="routers")

    @classmethod
    def check_test_case(cls, hyperparameters: Mapping[str, Any], modules: Modules) -> None:
        router = hyperparameters.get("router")
        if router is not None:
            check_router_in_test_case(router, modules)
        for folder in (hyperparameters.get("routers") or {}).values():
            check_router_in_test_case({"name": LearnedRouter.__name__, "path": folder}, modules)
        kind, settings = modules.get("edgemodel", (None, {}))
        if not (isinstance(kind, type) and issubclass(kind, EdgeModel)):
            return
        check_edge(model_of(hyperparameters).signals, settings)
        if hyperparameters.get("decide_after") is None:
            return
        if not settings.get("logprobs"):
            reason = "looks at the edge's first tokens: set logprobs: true in the settings of the edge model"
            raise UserError(f"CascadeRouter's decide_after {reason}", key="decide_after")
        try:
            backend(resolve(settings.get("backend") or "autoregressive")).check_resume()
        except UserError as error:
            raise UserError(f"decide_after continues the edge's answer, but {error}", key="decide_after") from error
        if settings.get("temperature") and settings.get("acceptance") != "coupled":
            reason = "sampled answers (temperature) cannot be: set temperature: 0, or acceptance: coupled"
            raise UserError(f"decide_after continues the edge's answer, and {reason}", key="decide_after")

    def score(self, query: Query) -> float:
        raise UserError("CascadeRouter needs the edge's answer: give it the row or the response, not the query alone")

    def score_row(self, data: Any) -> float:
        return self.decide(data).score

    def decide(self, data: Any) -> Decision:
        answered = isinstance(data, Mapping) and "turns" in data and "completion" in data
        if answered and self.early is not None:
            raise UserError(
                "decide_after stops the edge's answer, which is whole already: set hard_example_mining_mode to "
                "mining-then-inference"
            )
        known: dict[str, float] = {}
        begun: dict[str, float] = {}
        early = None if answered else self._early(data, known, begun)
        waited = 0.0
        for name, prior in self.signal_routers.items():
            if not _probes(prior):
                with self._asking[name]:
                    known[name] = prior.score_row(data)
                continue
            probed = prior.decide(data)
            if probed.reason == UNANSWERED:
                return replace(probed, waited=waited + probed.waited)
            waited += probed.waited
            known[name] = probed.score
        if answered:
            return self._judge(data, known)
        started = time.perf_counter()
        response = edge_first.request_answer(data, early)
        waited += time.perf_counter() - started
        if self.early is None:
            return replace(self._judge(response, known), waited=waited)
        if early is not None and early.stopped:
            decision = Decision(self.early.model.score(begun), True, details={"doubts": begun})
        else:
            decision = self._judge(response, known)
        return replace(decision, waited=waited, details={**decision.details, "decide_after": self.early.tokens})

    def _early(self, data: Any, known: Mapping[str, float], begun: dict[str, float]) -> EarlyExit | None:
        """What becomes of the edge's answer after its first tokens. ``known``: the scores of the routers by then;
        ``begun`` gets the signals."""
        if (first := self.early) is None:
            return None
        query = query_of_row(data)

        def stops(answer: Completion) -> bool:
            begun.update(early_signals(first.model.signals, query, answer, known))
            return first.model.score(begun) >= first.model.threshold

        return EarlyExit(first.tokens, stops)

    def _judge(self, response: Mapping[str, Any], known: Mapping[str, float]) -> Decision:
        if response.get("error") or not response["turns"]:
            return Decision(1.0, True, UNANSWERED)
        doubts = {name: known[name] if name in known else SIGNALS[name](response) for name in self.model.signals}
        score = self.model.score(doubts)
        return Decision(score, score >= self.threshold, details={"doubts": doubts})


def _probes(prior: Any) -> bool:
    return bool(getattr(prior, "probes", False))
