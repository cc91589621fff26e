"""How long steps and drafts take, learned from those that are over.

Time is linear in what a step does, but for bends: rows are free while reading the weights takes longest, and cost from
some number on. So each is a linear model over the features of ``Work``::

    step  = speed * (a + b requests + c context + prompts ... + d rows + sum of e_k max(rows - knot_k, 0))
    draft = speed * (a if any + b depth + c requests + d drafting requests + e nodes + f tokens to catch up with)

The weights are learned by recursive least squares in its Bayesian form (West and Harrison, "Bayesian Forecasting and
Dynamic Models"): a normal distribution that each step narrows. From it come both the time that a step of any size is
thought to take and how uncertain that is. What is known leaks away, so that a machine that changes is followed.

``speed`` is how busy the machine is. It has a place of its own since it changes at once and for all sizes alike: the
median of what the last three steps took, over what their sizes explain.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ianvs_specdec.decoding.load import Finished

Floats = NDArray[np.float64]

KNOTS = 2.0 ** np.arange(1, 11)
"""Rows at which the price of a further row may change: the kernels and the roofline have their bends near such."""
PROMPT_KNOTS = (0, 128, 256)
"""Rows of prompts, likewise: what a GPU reads for free lies in between."""
FORGOTTEN = 1 / 3000
"""Share of what is known that leaks away per step: of what was seen hundreds of steps ago most is left, so that a size
that is rarely used stays known, and of what was seen ten thousand ago nothing."""
LATE = 0.4
"""A step that took half as long again or more tells nothing unless the one before did as well: single steps are late
when another program runs for a moment."""
CHANGED, UNLEARNED = 0.2, 0.2
"""When ``speed`` moves by so much in logarithms, beyond the noise of steps, so much of what is known leaks away at once:
it may be the sizes that cost more, not the machine that is busy."""
SHORTEST = 0.05
"""A step is thought to take at least so much of the first one."""


class Work(NamedTuple):
    """What a step does, or, with arrays, what each of several steps does. ``prompts`` are rows of prompts beside it,
    ``drafting`` requests draft ``nodes`` tokens together and ``depth`` levels at most, and their drafters read
    ``behind`` tokens first."""

    requests: Any
    rows: Any
    context: Any
    prompts: Any
    drafting: Any
    nodes: Any
    depth: Any
    behind: Any


class LinearModel:
    """Bayesian linear regression whose knowledge leaks away. ``prior`` has a mean and a standard deviation for each
    weight."""

    def __init__(self, prior: Sequence[tuple[float, float]]) -> None:
        means, spreads = zip(*prior, strict=True)
        self._weights, self._unknown = np.array(means), np.diag(np.square(spreads))
        self._covariance = self._unknown.copy()

    def mean(self, features: Floats) -> Any:
        return features @ self._weights

    def variance(self, features: Floats) -> Any:
        return ((features @ self._covariance) * features).sum(-1)

    def learn(self, features: Floats, value: float, noise: float) -> None:
        """Of a ``value`` whose error has the standard deviation ``noise``; one that is far off counts as three."""
        covariance = self._covariance @ features
        variance = float(features @ covariance) + noise**2
        limit = 3 * math.sqrt(variance)
        error = min(max(value - float(self.mean(features)), -limit), limit)
        self._weights += covariance * (error / variance)
        self._covariance -= np.outer(covariance, covariance / variance)
        self.forget(FORGOTTEN)

    def forget(self, share: float) -> None:
        self._covariance += share * (self._unknown - self._covariance)


class StepCosts:
    """``first`` is a step without drafts: all weights are relative to its time and its size, so that what is thought
    before anything is known fits every machine."""

    def __init__(self, first: Finished) -> None:
        self._unit = first.verify_seconds + first.other_seconds
        self._size, self._context = len(first.shares), max(first.context, 1)
        # Before anything is known: most of a step's time is there whatever it computes, and all else is a small part.
        bends = [(0.0, 0.3 / (1 + knot / self._size)) for knot in KNOTS]
        prompts = [(0.1, 0.5), (0.0, 1.0), (0.0, 1.0), (0.0, 1.0)]
        self._step = LinearModel([(0.8, 0.5), (0.05, 0.2), (0.05, 0.2), *prompts, (0.1, 0.3), *bends])
        self._draft = LinearModel([(0.03, 0.1), (0.03, 0.1), (0.0, 0.05), (0.01, 0.05), (0.01, 0.05), (0.0, 0.05)])
        self._speed, self._noise, self._off = 0.0, 0.1, 0.0
        self.changed = False
        self._speeds = deque([0.0] * 3, maxlen=3)

    def seconds(self, work: Work) -> Floats:
        """What each of several steps is thought to take."""
        verifying = np.maximum(self._step.mean(self._step_features(work)), SHORTEST)
        # No step takes longer than one of more rows, and no draft less than none.
        larger = np.argsort(-work.rows)
        verifying[larger] = np.minimum.accumulate(verifying[larger])
        none = work._replace(drafting=0, nodes=0, depth=0, behind=0)
        drafting = np.maximum(self._draft.mean(self._draft_features(work)), self._draft.mean(self._draft_features(none)))
        return self._unit * math.exp(self._speed) * (verifying + drafting)

    def doubt(self, work: Work, place: int) -> Floats:
        """The standard deviation of how much longer each step takes than the one at ``place``."""
        step, draft = self._step_features(work), self._draft_features(work)
        variance = self._step.variance(step - step[place]) + self._draft.variance(draft - draft[place])
        return self._unit * math.exp(self._speed) * np.sqrt(variance)

    def learn(self, finished: Finished, drafts_too: bool = True) -> None:
        work = _work(finished)
        step, draft = self._step_features(work), self._draft_features(work)
        thought = max(float(self._step.mean(step)), SHORTEST)
        taken = max(finished.verify_seconds + finished.other_seconds, 1e-9) / self._unit
        off = math.log(taken / thought) - self._speed
        before, self._off = self._off, off
        self._noise += 0.05 * (min(abs(off), 0.5) - self._noise)
        if abs(off) <= LATE or off * before >= LATE**2:
            noise, speed = min(max(1.25 * self._noise, 0.03), 0.3), math.exp(self._speed)
            self._step.learn(step, taken / speed, noise * thought)
            if drafts_too:
                drafting = max(float(self._draft.mean(draft)), 0.02)
                self._draft.learn(draft, finished.draft_seconds / self._unit / speed, 1.5 * noise * drafting)
            thought = max(float(self._step.mean(step)), SHORTEST)
        self._adapt(math.log(taken / thought))

    def _adapt(self, off: float) -> None:
        """What sizes do not explain is the machine's speed."""
        self._speeds.append(off)
        moved = sorted(self._speeds)[1] - self._speed
        self._speed += 0.5 * moved - 0.01 * self._speed
        if abs(moved) > CHANGED:
            self.changed = True
            self._step.forget(UNLEARNED)
            self._draft.forget(UNLEARNED)

    def _step_features(self, work: Work) -> Floats:
        prompts = [np.maximum(work.prompts - knot, 0) / 128 for knot in PROMPT_KNOTS]
        bends = [np.maximum(work.rows - knot, 0) / self._size for knot in KNOTS]
        sizes = work.requests / self._size, work.context / self._context
        return _matrix(1.0, *sizes, np.minimum(work.prompts, 1), *prompts, work.rows / self._size, *bends)

    def _draft_features(self, work: Work) -> Floats:
        each = work.requests, work.drafting, work.nodes, work.behind
        return _matrix(np.minimum(work.drafting, 1), work.depth, *(one / self._size for one in each))


def _matrix(*features: Any) -> Floats:
    return np.stack(np.broadcast_arrays(*features), axis=-1).astype(np.float64)


def _work(finished: Finished) -> Work:
    shares = [share for share in finished.shares if share.budget]
    depth = max((share.depth for share in shares), default=0)
    nodes, behind = sum(share.step.drafted for share in shares), sum(share.behind for share in shares)
    requests, prompts = len(finished.shares), finished.prompt_rows
    return Work(requests, finished.rows, finished.context, prompts, len(shares), nodes, depth, behind)
