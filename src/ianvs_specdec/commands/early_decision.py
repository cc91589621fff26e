"""Signals of the edge's answers and their first tokens, and the fit of an early decision, for ``route calibrate``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Completion, Query, Trace
from ianvs_specdec.records.continuation import first_tokens
from ianvs_specdec.records.response import Response
from ianvs_specdec.routing.evaluation.metrics import RouterScores
from ianvs_specdec.routing.learned.uncertainty import UncertaintyModel, cross_fitted, fit
from ianvs_specdec.routing.outcomes.recorded import Floats
from ianvs_specdec.routing.routers.cascade import WHOLE_ANSWER_SIGNALS, early_signals
from ianvs_specdec.routing.routers.signals import SIGNALS

PRECISION = 0.95
"""Share of the answers ended early that the whole answer would also send to the cloud: a mistake costs the cloud's
price, while an early end saves only some of the edge's tokens."""
NEVER = 1.0
"""A threshold that no score reaches."""


class AnswerSignals:
    """Signals of answers, added one by one. ``after``: number of first tokens; None for whole answers only.

    ``doubts``: signal -> [answers]; ``tokens``: [answers]; ``begun``: whether each answer is longer than ``after``;
    ``beginnings``: signal -> values of the first tokens of those.
    """

    def __init__(self, signals: Sequence[str], after: int | None) -> None:
        self._after = after
        self.doubts: dict[str, list[float]] = {name: [] for name in signals}
        early = () if after is None else (name for name in signals if name not in WHOLE_ANSWER_SIGNALS)
        self.beginnings: dict[str, list[float]] = {name: [] for name in early}
        self.tokens: list[int] = []
        self.begun: list[bool] = []

    def add(self, query: Query, response: Response, known: Mapping[str, float]) -> None:
        """Add an answer; ``known``: scores of routers by name of the signal."""
        for name, values in self.doubts.items():
            values.append(known[name] if name in known else SIGNALS[name](response))
        self.tokens.append(response["usage"]["completion_tokens"])
        first = None if self._after is None else first_tokens(_first_turn(response), self._after)
        self.begun.append(first is not None)
        if first is not None:
            for name, doubt in early_signals(tuple(self.beginnings), query, first, known).items():
                self.beginnings[name].append(doubt)


def arrays(signals: Mapping[str, Sequence[float]]) -> dict[str, Floats]:
    return {name: np.array(values) for name, values in signals.items()}


def _first_turn(response: Response) -> Completion:
    turn = response["turns"][0]
    ids, trace = list(turn["token_ids"]), msgspec.convert(turn["trace"], Trace)
    return Completion(turn["completion"], ids, 0, len(ids), turn["finish_reason"], trace)


@dataclass(frozen=True, eq=False)
class EarlyDecision:
    """``doubt``: fit to the first ``tokens``; ``scores``, ``stopped``: [queries], cross-fitted; ``agreed``: share of
    the stopped answers that the whole answer sends to the cloud; ``saved``: share of the edge's tokens."""

    doubt: UncertaintyModel
    tokens: int
    scores: Floats
    stopped: NDArray[np.bool_]
    agreed: float
    saved: float

    def scored(self, whole: Floats, threshold: float) -> RouterScores:
        """The cascade with early decisions; ``whole``: scores of whole answers, with their threshold."""
        sent = (self.stopped | (whole >= threshold)).astype(np.float64)
        return RouterScores(f"after {self.tokens} tokens", np.where(self.stopped, self.scores, whole), sent)

    def summary(self) -> str:
        stopped = int(self.stopped.sum())
        if not stopped:
            return f"after {self.tokens} tokens no threshold is precise enough: no answer ends there"
        return (
            f"after {self.tokens} tokens {stopped} of {len(self.stopped)} answers end, threshold "
            f"{self.doubt.threshold:.4f}: {self.saved:.1%} of the edge's tokens are saved, and {self.agreed:.1%} of "
            "these queries would go to the cloud in any case"
        )


def fit_early(
    asked: AnswerSignals, tokens: int, labels: Floats, folds: Sequence[NDArray[np.intp]], hard: NDArray[np.bool_]
) -> EarlyDecision:
    """``folds``: indices of the queries of each; ``hard``: decisions by whole answers. Raises UserError."""
    places = np.flatnonzero(asked.begun)
    if not len(places):
        raise UserError(f"--after {tokens}: no answer of the edge has more tokens")
    inside = [np.flatnonzero(np.isin(places, fold)) for fold in folds]
    beginnings, lengths = arrays(asked.beginnings), np.array(asked.tokens)
    try:
        slopes, offset = fit(beginnings, labels[places])
        scores = cross_fitted(beginnings, labels[places], [fold for fold in inside if len(fold)])
    except UserError as error:
        raise UserError(f"--after {tokens}: {error}") from error
    agrees = hard[places]
    threshold = precise_threshold(scores, agrees)
    stopped, of_all = np.zeros(len(labels), np.bool_), np.full(len(labels), np.nan)
    stopped[places], of_all[places] = scores >= threshold, scores
    saved = float((lengths - tokens)[stopped].sum() / lengths.sum())
    agreed = float(agrees[scores >= threshold].mean()) if stopped.any() else float("nan")
    rounded = {name: round(slope, 6) for name, slope in slopes.items()}
    doubt = UncertaintyModel(tuple(slopes), rounded, round(offset, 6), round(threshold, 6))
    return EarlyDecision(doubt, tokens, of_all, stopped, agreed, saved)


def precise_threshold(scores: Floats, agrees: NDArray[np.bool_]) -> float:
    """The lowest threshold at which a share of at least ``PRECISION`` of the scores that reach it agree; ``NEVER`` if
    there is none."""
    order = np.argsort(-scores, kind="stable")
    ranked, right = scores[order], np.cumsum(agrees[order])
    # No threshold separates equal scores.
    last = np.append(ranked[:-1] > ranked[1:], True)
    enough = np.flatnonzero(last & (right >= PRECISION * np.arange(1, len(ranked) + 1)))
    if not len(enough):
        return NEVER
    place = int(enough[-1])
    below = ranked[place + 1] if place + 1 < len(ranked) else 0.0
    return float((ranked[place] + below) / 2)
