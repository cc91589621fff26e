"""How long steps and drafts take, learned from those that are over.

Time is linear in what a step does, but for bends: rows are free while the weights are read, and cost from some number
on (the roofline). So each is a linear model::

    step  = speed * (a + b requests + c context + d rows + e any prompt + f prompts + sum of g_k max(rows - knot_k, 0))
    draft = speed * (a any + b depth + c requests + d drafting requests + e nodes + f behind)

The weights are learned by recursive least squares in its Bayesian form (West and Harrison, "Bayesian Forecasting and
Dynamic Models"): a normal distribution, which tells what a step of any size takes and how uncertain that is. What is
known leaks away, so that changes are followed. ``speed`` says how busy the machine is, which changes at once and for
all sizes alike: the median of what the last three steps took over what they were thought to take.
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
"""Rows at which the price of a further one may change: kernels have their bends near powers of two."""
STEP_PRIOR = (0.8, 0.5), (0.05, 0.2), (0.05, 0.2), (0.1, 0.3), (0.1, 0.5), (0.0, 1.0)
DRAFT_PRIOR = (0.03, 0.1), (0.03, 0.1), (0.0, 0.05), (0.01, 0.05), (0.01, 0.05), (0.0, 0.01)
"""Mean and standard deviation of the weights, as parts of the first step: most of it is there whatever it does, and a
draft's level takes a thirtieth of it. All is doubted about as much as it is large."""
FORGOTTEN = 1 / 3000
"""Share of what is known that leaks away with each step: a size that is used once in hundreds of steps stays known."""
LATE = 0.4
"""In logarithms: a step that took half as long again tells nothing unless the next one did so, too. Single ones are
late when another program runs for a moment."""
CHANGED, UNLEARNED = 0.2, 0.2
"""When ``speed`` moves by so much in logarithms, more than the noise of steps, so much of what is known leaks away: it
may be the price of sizes that has changed."""
SHORTEST = 0.05
"""No step and no draft is thought to take less of the first step."""


class Work(NamedTuple):
    """What steps do, each field a number or one for each step. ``drafting`` requests draft ``nodes`` tokens together,
    up to ``depth`` levels, and their drafters first read ``behind`` tokens. Beside it, ``prompts`` rows are read."""

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
        self._weights, self._unknown = np.array(means), np.diag(np.square(spreads))
        self._covariance = self._unknown.copy()

    def mean(self, features: Floats) -> Any:
        return features @ self._weights

    def variance(self, features: Floats) -> Any:
        return ((features @ self._covariance) * features).sum(-1)

    def learn(self, features: Floats, value: float, noise: float) -> None:
        """``noise`` is the standard deviation of values. What is off by more than three counts as off by three."""
        covariance = self._covariance @ features
        variance = float(features @ covariance) + noise**2
        limit = 3 * math.sqrt(variance)
        self._weights += covariance * (min(max(value - float(self.mean(features)), -limit), limit) / variance)
        self._covariance -= np.outer(covariance, covariance / variance)
        self.forget(FORGOTTEN)

    def forget(self, share: float) -> None:
        self._covariance += share * (self._unknown - self._covariance)


class StepCosts:
    """All is relative to the time and the size of the first step. ``changed`` is set when times have changed."""

    def __init__(self) -> None:
        self._unit, self._size, self._context = 0.0, 1, 1
        self._speed, self._speeds = 0.0, deque([0.0] * 3, maxlen=3)
        self._noise, self._late = 0.1, 0.0
        self.changed = False

    def _begin(self, first: FinishedStep) -> None:
        self._unit = first.verify_seconds + first.other_seconds
        self._size, self._context = len(first.requests), max(first.context, 1)
        self._step = LinearModel([*STEP_PRIOR, *((0.0, 0.3 / (1 + knot / self._size)) for knot in KNOTS)])
        self._draft = LinearModel([*DRAFT_PRIOR])

    def seconds(self, work: Work) -> Floats:
        step = np.maximum(self._step.mean(self._step_features(work)), SHORTEST)
        draft = np.maximum(self._draft.mean(self._draft_features(work)), 0.0)
        return self._unit * math.exp(self._speed) * (step + draft)

    def doubt(self, work: Work, place: int) -> Floats:
        """The standard deviation of how much longer each step takes than the one at ``place``."""
        step, draft = self._step_features(work), self._draft_features(work)
        variance = self._step.variance(step - step[place]) + self._draft.variance(draft - draft[place])
        return self._unit * math.exp(self._speed) * np.sqrt(variance)

    def learn(self, finished: FinishedStep) -> None:
        if not self._unit:
            self._begin(finished)
        asked = [request for request in finished.requests if request.budget]
        nodes, behind = sum(request.step.drafted for request in asked), sum(request.unread_tokens for request in asked)
        depth, size = max((request.depth for request in asked), default=0), len(finished.requests)
        work = Work(size, finished.rows, finished.context, finished.prompt_rows, len(asked), nodes, depth, behind)
        step, draft = self._step_features(work), self._draft_features(work)
        taken = max(finished.verify_seconds + finished.other_seconds, 1e-9) / self._unit
        thought, speed = max(float(self._step.mean(step)), SHORTEST), math.exp(self._speed)
        before, self._late = self._late, math.log(taken / thought) - self._speed
        self._noise += 0.05 * (min(abs(self._late), 0.5) - self._noise)
        if abs(self._late) <= LATE or self._late * before >= LATE**2:
            noise = min(max(self._noise, 0.03), 0.3)
            self._step.learn(step, taken / speed, noise * thought)
            drafting = max(float(self._draft.mean(draft)), SHORTEST)
            self._draft.learn(draft, finished.draft_seconds / self._unit / speed, noise * drafting)
            thought = max(float(self._step.mean(step)), SHORTEST)
        self._adapt(math.log(taken / thought))

    def _adapt(self, late: float) -> None:
        """What sizes do not explain is the machine's speed."""
        self._speeds.append(late)
        moved = sorted(self._speeds)[1] - self._speed
        # A little of it always goes over to the sizes: a speed that stays is theirs.
        self._speed += 0.5 * moved - 0.01 * self._speed
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
    """One row of features, or one for each step."""
    table = np.empty((*np.shape(work.rows), len(features)))
    for column, feature in enumerate(features):
        table[..., column] = feature
    return table
