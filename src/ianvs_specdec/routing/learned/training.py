"""Training a router: fit a classifier, calibrate it and pick its threshold on queries that it was not fitted to."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.routing.learned.classifier import Classifier, classifier
from ianvs_specdec.routing.learned.folder import TrainedRouter
from ianvs_specdec.routing.learned.logistic import fit_calibration
from ianvs_specdec.routing.outcomes.hidden_states import RecordedStates
from ianvs_specdec.routing.outcomes.labels import targets
from ianvs_specdec.routing.outcomes.recorded import Floats, Outcomes

log = logging.getLogger(__name__)

FEWEST = 20
HOLD = 0.2
QUANTILES = np.linspace(0, 1, 101)
"""Of the scores, for the beginning of a budget."""


@dataclass(frozen=True)
class RouterRecipe:
    """``kind``: see ``classifier.CLASSIFIERS``; ``label``, ``epsilon``: see ``labels``; ``options``: the kind's own.

    Calibration and threshold use scores by cross-fitting in ``folds`` parts of rows or groups (``by``); with 1 the
    share ``HOLD`` is kept from the only fit. The threshold keeps the share ``keep`` of the cloud's quality, or sends
    ``cloud_share`` of the queries to the cloud.
    """

    kind: str = "logistic"
    label: str = "gain"
    epsilon: float = 0.0
    options: Mapping[str, Any] = field(default_factory=dict)
    folds: int | None = None
    by: str = "row"
    seed: int = 0
    keep: float = 0.97
    cloud_share: float | None = None


def train(outcomes: Outcomes, recipe: RouterRecipe, states: RecordedStates | None = None) -> TrainedRouter:
    """``states``: for a probe. Raises UserError if there are too few outcomes, or all have the same label."""
    kind = classifier(recipe.kind)
    kind.Options.parse(recipe.options)
    if len(outcomes) < FEWEST:
        raise UserError(f"{len(outcomes)} outcomes are too few to train a router: give at least {FEWEST}")
    labels = targets(outcomes, recipe.label, recipe.epsilon)
    model, scores, known = _cross_fit(kind, outcomes, labels, recipe, states)
    calibration = fit_calibration(scores[known], labels[known])
    calibrated, part = calibration(scores[known]), outcomes.take(known)
    if recipe.cloud_share is not None:
        threshold = share_threshold(calibrated, recipe.cloud_share)
    else:
        threshold = quality_threshold(calibrated, part, recipe.keep)
    return TrainedRouter(
        recipe.kind,
        model,
        calibration,
        threshold,
        outcomes.digests(),
        label=recipe.label,
        epsilon=recipe.epsilon,
        report={"score_quantiles": np.quantile(calibrated, QUANTILES).round(6).tolist()},
    )


def _cross_fit(
    kind: type[Classifier], outcomes: Outcomes, labels: Floats, recipe: RouterRecipe, states: RecordedStates | None
) -> tuple[Classifier, Floats, NDArray[np.bool_]]:
    """The classifier, scores by classifiers that had not seen the query, and which queries have one."""
    given: dict[str, Any] = {**recipe.options, **({} if states is None else {"states": states})}
    if given.get("embedding"):
        from ianvs_specdec.routing.learned.text import Sentences

        given["embedding"] = Sentences(given["embedding"], {})

    def fitted(rows: NDArray[np.bool_]) -> Classifier:
        queries = [query for query, chosen in zip(outcomes.queries, rows, strict=True) if chosen]
        return kind.fit(queries, labels[rows], seed=recipe.seed, **given)

    folds = kind.FOLDS if recipe.folds is None else recipe.folds
    parts = fold_numbers(outcomes, recipe.by, folds if folds > 1 else round(1 / HOLD), recipe.seed)
    scores = np.full(len(outcomes), np.nan)
    for fold in range(folds):
        inside = parts == fold
        if np.ptp(labels[~inside]) == 0:
            raise UserError("too few queries differ in their label: give more outcomes, or train with fewer --folds")
        model = fitted(~inside)
        scores[inside] = model.score([outcomes.queries[index] for index in np.flatnonzero(inside)])
        log.info("fold %d of %d is fitted", fold + 1, folds)
    if folds > 1:
        model = fitted(np.ones(len(outcomes), dtype=bool))
    return model, scores, ~np.isnan(scores)


def fold_numbers(outcomes: Outcomes, by: str, folds: int, seed: int) -> NDArray[np.intp]:
    """The fold of each query, int [queries]. Equal queries, or whole groups, are together."""
    units = outcomes.groups if by == "group" else outcomes.digests().tolist()
    names, members = np.unique(np.array(units), return_inverse=True)
    if len(names) < folds:
        raise UserError(f"{len(names)} different {by}s cannot be divided into {folds} folds: give fewer --folds")
    shuffled: NDArray[np.intp] = np.random.default_rng(seed).permutation(len(names)) % folds
    return shuffled[members]


ONE_SIDED_95 = 1.645
ALL = 0.0
"""At this threshold every query goes to the cloud."""


def quality_threshold(scores: Floats, outcomes: Outcomes, keep: float) -> float:
    """The highest threshold at which the share ``keep`` of the cloud's quality is kept with 95 % confidence: the
    one-sided normal bound of quality - keep * cloud, over queries, is not below 0.
    """
    thresholds, edges = _candidates(scores)
    excess = outcomes.edge - keep * outcomes.cloud
    order = np.argsort(-scores, kind="stable")
    gain = outcomes.gain[order]
    # With the first n queries in the cloud the excess of each of them is its gain higher.
    change = gain * (gain + 2 * excess[order])
    count = len(scores)
    sums = np.concatenate([[0.0], np.cumsum(gain)])[edges] + excess.sum()
    squares = np.concatenate([[0.0], np.cumsum(change)])[edges] + (excess**2).sum()
    mean = sums / count
    error = np.sqrt(np.maximum(squares / count - mean**2, 0.0) / count)
    enough = np.flatnonzero(mean - ONE_SIDED_95 * error >= 0)
    return float(thresholds[enough[0]]) if len(enough) else ALL


def share_threshold(scores: Floats, share: float) -> float:
    """The lowest threshold at which no more than ``share`` of the queries go to the cloud."""
    thresholds, edges = _candidates(scores)
    permitted = np.flatnonzero(edges <= share * len(scores) + 1e-9)
    return float(thresholds[permitted[-1]])


def _candidates(scores: Floats) -> tuple[Floats, np.ndarray]:
    """Thresholds from high to low, halfway between neighbouring scores below 1, and how many queries reach each."""
    values, counts = np.unique(scores, return_counts=True)
    between = np.concatenate([[ALL], (values[1:] + values[:-1]) / 2, [(values[-1] + 1.0) / 2]])
    return between[::-1], np.concatenate([[0], np.cumsum(counts[::-1])])
