"""Times of steps and drafts, learned from finished ones.

Times are linear in the work, with bends: rows are free while the weights are read, and cost from some number on (the
roofline). So there are two linear models::

    step  = a + b requests + c context + d rows + e any prompt + f prompts + sum of g_k max(rows - knot_k, 0)
    draft = a any + b depth + c requests + d drafting requests + e nodes + f unread

Both are multiplied by ``slowdown``, the load of the machine, which changes quickly and for all sizes alike. It follows
the median of the last three ratios of measured to predicted time.

The weights are learned by recursive least squares in Bayesian form (West and Harrison, "Bayesian Forecasting and
Dynamic Models"): a normal distribution that predicts the time of any step and its uncertainty. Information decays, so
that changes are followed.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ianvs_specdec.engine.length import FinishedStep

Floats = NDArray[np.float64]

KNOTS = 2.0 ** np.arange(1, 11)
"""Rows at which the price of a further one may change: kernels have bends near powers of two."""
STEP_PRIOR = (0.8, 0.5), (0.05, 0.2), (0.05, 0.2), (0.1, 0.3), (0.1, 0.5), (0.0, 1.0)
DRAFT_PRIOR = (0.03, 0.1), (0.03, 0.1), (0.0, 0.05), (0.01, 0.05), (0.01, 0.05), (0.0, 0.01)
"""Mean and standard deviation of the weights, relative to the first step: most of a step is fixed cost, and a draft
level takes a thirtieth. The deviations are about as large as the means."""
FORGOTTEN = 1 / 3000
"""Share of information lost per step: a size that occurs once in hundreds of steps stays known."""
OUTLIER = 0.4
"""Logarithm: a step that took half as long again is ignored unless the previous one was slow, too. Single steps are
slow when another program runs."""
CHANGED, UNLEARNED = 0.2, 0.2
"""A change of ``slowdown`` by this amount (logarithm), more than noise, loses this share of the information: prices may
have changed."""
SHORTEST = 0.05
"""Minimum prediction for a step or draft, relative to the first step."""


class Work(NamedTuple):
    """Work of steps; each field is a number or an array with one number per step. ``drafting`` requests draft ``nodes``
    tokens together, up to ``depth`` levels, after reading ``behind`` tokens. ``prompts`` are prompt rows."""

    requests: Any
    rows: Any
    context: Any
    prompts: Any
    drafting: Any
    nodes: Any
    depth: Any
    behind: Any


class LinearModel:
    def __init__(self, prior: list[tuple[float, float]]) -> None:
        means, spreads = zip(*prior, strict=True)
        self._weights, self._prior = np.array(means), np.diag(np.square(spreads))
        self._covariance = self._prior.copy()

    def mean(self, features: Floats) -> Any:
        return features @ self._weights

    def variance(self, features: Floats) -> Any:
        return ((features @ self._covariance) * features).sum(-1)

    def learn(self, features: Floats, value: float, noise: float) -> None:
        """``noise`` is the standard deviation of values. Deviations from
        the prediction are clipped at three standard deviations."""
        covariance = self._covariance @ features
        variance = float(features @ covariance) + noise**2
        limit = 3 * math.sqrt(variance)
        self._weights += covariance * (min(max(value - float(self.mean(features)), -limit), limit) / variance)
        self._covariance -= np.outer(covariance, covariance / variance)
        self.forget(FORGOTTEN)

    def forget(self, share: float) -> None:
        self._covariance += share * (self._prior - self._covariance)


class StepCosts:
    """Everything is relative to time and size of the first step. ``changed`` is set when times have changed."""

    def __init__(self) -> None:
        self._unit, self._size, self._context = 0.0, 1, 1
        self._slowdown, self._slowdowns = 0.0, deque([0.0] * 3, maxlen=3)
        self._noise, self._residual = 0.1, 0.0
        self.changed = False

    def _begin(self, first: FinishedStep) -> None:
        self._unit = first.verify_seconds + first.other_seconds
        self._size, self._context = len(first.requests), max(first.context, 1)
        self._step = LinearModel([*STEP_PRIOR, *((0.0, 0.3 / (1 + knot / self._size)) for knot in KNOTS)])
        self._draft = LinearModel([*DRAFT_PRIOR])

    def seconds(self, work: Work) -> Floats:
        step = np.maximum(self._step.mean(self._step_features(work)), SHORTEST)
        draft = np.maximum(self._draft.mean(self._draft_features(work)), 0.0)
        return self._unit * math.exp(self._slowdown) * (step + draft)

    def uncertainty(self, work: Work, place: int) -> Floats:
        """Standard deviation of the difference in time between each step and the one at ``place``."""
        step, draft = self._step_features(work), self._draft_features(work)
        variance = self._step.variance(step - step[place]) + self._draft.variance(draft - draft[place])
        return self._unit * math.exp(self._slowdown) * np.sqrt(variance)

    def learn(self, finished: FinishedStep) -> None:
        if not self._unit:
            self._begin(finished)
        drafted = [request for request in finished.requests if request.budget]
        nodes, behind = (
            sum(request.step.drafted for request in drafted),
            sum(request.unread_tokens for request in drafted),
        )
        depth, size = max((request.depth for request in drafted), default=0), len(finished.requests)
        work = Work(size, finished.rows, finished.context, finished.prompt_rows, len(drafted), nodes, depth, behind)
        step, draft = self._step_features(work), self._draft_features(work)
        measured = max(finished.verify_seconds + finished.other_seconds, 1e-9) / self._unit
        expected, slowdown = max(float(self._step.mean(step)), SHORTEST), math.exp(self._slowdown)
        before, self._residual = self._residual, math.log(measured / expected) - self._slowdown
        self._noise += 0.05 * (min(abs(self._residual), 0.5) - self._noise)
        if abs(self._residual) <= OUTLIER or self._residual * before >= OUTLIER**2:
            noise = min(max(self._noise, 0.03), 0.3)
            self._step.learn(step, measured / slowdown, noise * expected)
            drafting = max(float(self._draft.mean(draft)), SHORTEST)
            self._draft.learn(draft, finished.draft_seconds / self._unit / slowdown, noise * drafting)
            expected = max(float(self._step.mean(step)), SHORTEST)
        self._adapt(math.log(measured / expected))

    def _adapt(self, residual: float) -> None:
        """Assign to ``slowdown`` what sizes do not explain."""
        self._slowdowns.append(residual)
        moved = sorted(self._slowdowns)[1] - self._slowdown
        # A constant slowdown is gradually assigned to the sizes.
        self._slowdown += 0.5 * moved - 0.01 * self._slowdown
        if abs(moved) > CHANGED:
            self.changed = True
            self._step.forget(UNLEARNED)
            self._draft.forget(UNLEARNED)

    def _step_features(self, work: Work) -> Floats:
        sizes = work.requests / self._size, work.context / self._context, work.rows / self._size
        bends = np.maximum(np.subtract.outer(work.rows, KNOTS), 0) / self._size
        plain = _columns(work, 1.0, *sizes, np.minimum(work.prompts, 1), work.prompts / 128)
        return np.concatenate([plain, bends], axis=-1)

    def _draft_features(self, work: Work) -> Floats:
        each = work.requests, work.drafting, work.nodes, work.behind
        return _columns(work, np.minimum(work.drafting, 1), work.depth, *(one / self._size for one in each))


def _columns(work: Work, *features: Any) -> Floats:
    """A row of features, or one per step."""
    table = np.empty((*np.shape(work.rows), len(features)))
    for column, feature in enumerate(features):
        table[..., column] = feature
    return table
