"""What ``route calibrate`` finds out of the edge's answers: their signals, those of their beginnings, and what a fit to
the latter saves."""

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
from ianvs_specdec.routing.evaluation.quality import Scored
from ianvs_specdec.routing.learned.doubt import Doubt, cross_fitted, fit
from ianvs_specdec.routing.outcomes.recorded import Floats
from ianvs_specdec.routing.routers.cascade import OF_WHOLE, of_beginning
from ianvs_specdec.routing.routers.signals import SIGNALS

SURE = 0.95
"""Share of the answers that end early which the whole answer would send to the cloud, too: a mistake costs the cloud's
price, where the gain is some of the edge's tokens."""
NEVER = 1.0
"""No score of a fit reaches it."""


class AnswerSignals:
    """Signals of answers, which are added one by one. ``after``: tokens of a beginning, None for whole answers only.

    ``doubts``: [answers] by signal; ``tokens``: [answers]; ``begun``: which answers are longer than ``after``;
    ``beginnings``: the signals of the first tokens of those.
    """

    def __init__(self, signals: Sequence[str], after: int | None) -> None:
        self._after = after
        self.doubts: dict[str, list[float]] = {name: [] for name in signals}
        early = () if after is None else (name for name in signals if name not in OF_WHOLE)
        self.beginnings: dict[str, list[float]] = {name: [] for name in early}
        self.tokens: list[int] = []
        self.begun: list[bool] = []

    def add(self, query: Query, response: Response, known: Mapping[str, float]) -> None:
        """An answer, and the scores of routers ``known`` by their signals."""
        for name, values in self.doubts.items():
            values.append(known[name] if name in known else SIGNALS[name](response))
        self.tokens.append(response["usage"]["completion_tokens"])
        first = None if self._after is None else first_tokens(_first_turn(response), self._after)
        self.begun.append(first is not None)
        if first is not None:
            for name, doubt in of_beginning(tuple(self.beginnings), query, first, known).items():
                self.beginnings[name].append(doubt)


def arrays(signals: Mapping[str, Sequence[float]]) -> dict[str, Floats]:
    return {name: np.array(values) for name, values in signals.items()}


def _first_turn(response: Response) -> Completion:
    turn = response["turns"][0]
    ids, trace = list(turn["token_ids"]), msgspec.convert(turn["trace"], Trace)
    return Completion(turn["completion"], ids, 0, len(ids), turn["finish_reason"], trace)


@dataclass(frozen=True, eq=False)
class EarlyDecision:
    """``doubt``: of the first ``tokens``; ``scores``, ``stopped``: of all queries, cross-fitted."""

    doubt: Doubt
    tokens: int
    scores: Floats
    stopped: NDArray[np.bool_]
    agreed: float
    saved: float

    def scored(self, whole: Floats, threshold: float) -> Scored:
        """The cascade that decides early, by the scores of ``whole`` answers and their threshold."""
        sent = (self.stopped | (whole >= threshold)).astype(np.float64)
        return Scored(f"after {self.tokens} tokens", np.where(self.stopped, self.scores, whole), sent)

    def told(self) -> str:
        stopped = int(self.stopped.sum())
        if not stopped:
            return f"after {self.tokens} tokens nothing is as sure as it should be: no answer ends there"
        return (
            f"after {self.tokens} tokens {stopped} of {len(self.stopped)} answers end, threshold "
            f"{self.doubt.threshold:.4f}: {self.saved:.1%} of the edge's tokens are saved, and {self.agreed:.1%} of "
            "these queries would have gone to the cloud in the end"
        )


def fit_early(
    asked: AnswerSignals, tokens: int, labels: Floats, folds: Sequence[NDArray[np.intp]], hard: NDArray[np.bool_]
) -> EarlyDecision:
    """``folds``: the places of the queries in each; ``hard``: the decisions by whole answers. Raises UserError."""
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
    threshold = surely(scores, agrees)
    stopped, of_all = np.zeros(len(labels), np.bool_), np.full(len(labels), np.nan)
    stopped[places], of_all[places] = scores >= threshold, scores
    saved = float((lengths - tokens)[stopped].sum() / lengths.sum())
    agreed = float(agrees[scores >= threshold].mean()) if stopped.any() else float("nan")
    rounded = {name: round(slope, 6) for name, slope in slopes.items()}
    doubt = Doubt(tuple(slopes), rounded, round(offset, 6), round(threshold, 6))
    return EarlyDecision(doubt, tokens, of_all, stopped, agreed, saved)


def surely(scores: Floats, agrees: NDArray[np.bool_]) -> float:
    """The lowest threshold of which ``SURE`` of the ``scores`` that reach it are of those that agree; ``NEVER`` where
    there is none."""
    order = np.argsort(-scores, kind="stable")
    ranked, right = scores[order], np.cumsum(agrees[order])
    # A threshold cannot come between equal scores.
    last = np.append(ranked[:-1] > ranked[1:], True)
    enough = np.flatnonzero(last & (right >= SURE * np.arange(1, len(ranked) + 1)))
    if not len(enough):
        return NEVER
    place = int(enough[-1])
    below = ranked[place + 1] if place + 1 < len(ranked) else 0.0
    return float((ranked[place] + below) / 2)
