"""What a step takes beside its rows: for each token of context that it reads, each request, tokens of prompts."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

from ianvs_specdec.lengths.evidence import Floats
from ianvs_specdec.lengths.sizes import ANY, FEW, NOISE, PROMPT_TERMS, ROWS, Amount, Contents, Known, Size

MEMORY = 100
"""Steps that tell of the same over which it is learned; what no step tells of is kept."""
LITTLE = 0.01, 200_000.0, 4.0
"""While steps of a size have differed by less in their rows, contexts (tokens) and requests, in squares, what they take
is mostly noise."""
ALIKE = 4.0
"""While rows and requests have differed from each other by less, in squares, what one of each takes together is shared
between them, 0.6 for the row with ``LITTLE``. Whoever drafts finds out; whoever takes all for it would not draft."""
MANY = 40
"""Steps that are heard of until they are counted in, unless a plan asks sooner: one by one, that would take several
times as long."""
HALF = 0.5
"""The part of the first step with prompts that is thought to be for these, before more is known."""
OF_ROWS, OF_CONTEXT, OF_REQUESTS, OF_PROMPTS = range(4)
"""The terms; that of prompts is the first of several."""
OF_ANY, OF_TOKENS = range(2)
"""Among those of prompts, that for ``ANY``, and the one for each of their tokens."""
TERMS = OF_PROMPTS + PROMPT_TERMS
APART = np.zeros((TERMS, TERMS))
"""The square of more rows and fewer requests."""
APART[:OF_PROMPTS:2, :OF_PROMPTS:2] = (1.0, -1.0), (-1.0, 1.0)


class Beside:
    """A least squares fit over steps that differ from others of their size; of its terms, only that for rows may be
    below 0. Times are in units of the machine's speed, and known to about the same part of themselves: so each counts
    by its own."""

    def __init__(self) -> None:
        self.context = self.requests = 0.0
        self.prompts: Floats = np.zeros(PROMPT_TERMS)
        """What one of each term of prompts takes."""
        self._covariance: Floats = np.zeros((PROMPT_TERMS, PROMPT_TERMS))
        """Of these."""
        self._doubt_of_requests = math.inf
        """The variance of what a request takes, whatever the other terms are."""
        self._first = self._unit = 0.0
        """The first guess at what a token of a prompt takes; steps' work to the power of -2, on average."""
        self._sums = np.zeros((TERMS, TERMS + 1))
        self._heard: list[tuple[float, ...]] = []
        self._due = 1
        """How many steps are heard of until they are counted in. While the prices are guessed, these are few: a guess
        that is far off leaves wrong sizes behind."""

    def begin(self, prompts: int, work: float) -> None:
        """A step that read so many tokens of prompts took so much in all."""
        if not self._first:
            self.prompts[OF_TOKENS] = self._first = HALF * work / prompts
            self._covariance = self._first**2 * np.eye(PROMPT_TERMS)

    def of(self, context: Amount, requests: Amount, *prompts: float) -> Any:
        """What so much of each takes, and of each term of ``prompts``."""
        reading = sum(map(operator.mul, self.prompts.tolist(), prompts)) if prompts else 0.0
        return self.context * context + self.requests * requests + reading

    @property
    def reading(self) -> float:
        """What reading prompts takes at all, beside what their tokens take."""
        return float(self.prompts[OF_ANY]) * ANY

    def doubt(self, prompts: Floats) -> Any:
        """The variance of what so much of each term of ``prompts`` takes, but for ``ANY``: where all steps read some,
        nobody knows that apart from what their rows take, and nobody needs to, as steps have both."""
        tokens, covariance = prompts[OF_TOKENS:], self._covariance[OF_TOKENS:, OF_TOKENS:]
        # Rounding may leave a little less than nothing.
        return np.maximum((tokens * (covariance @ tokens)).sum(0), 0.0)

    def learn(self, step: Contents, size: Size, work: float, more: float, weight: float = 1.0) -> None:
        """A step that was thought to take the ``work`` took longer than the ``size`` does on average, by ``more``."""
        self._heard.append((step.rows - size.rows, *size.away(step), more, work, weight))
        if len(self._heard) >= self._due:
            self._due = min(2 * self._due, MANY)
            self.settle()

    def settle(self) -> None:
        """Work out what is known."""
        if not self._heard:
            return
        heard = np.array(self._heard)
        self._heard.clear()
        steps, work, weights = heard[:, :-2] / heard[:, -2:-1], heard[:, -2], heard[:, -1]
        unit, kept = float((work**-2.0).mean()), float((1 - weights / MEMORY).prod())
        self._unit += (1 - kept) * (unit - self._unit) if self._unit else unit
        told = (steps[:, :-1] ** 2 / self._little()).sum(1)
        forgotten = weights / MEMORY * told / (1 + told)
        news = (weights[:, None] * steps[:, :-1])[:, :, None] * steps[:, None, :]
        for terms, share, new in zip(steps[:, :-1], forgotten.tolist(), news, strict=True):
            self._hear(terms, share, new)
        self._solve()

    def _hear(self, terms: Floats, forgotten: float, news: Floats) -> None:
        """A step makes what was heard before count less, but only in the direction in which it differs from its size.
        Steps without drafts have a row for each request, so they do not tell the two apart: what drafts told of that is
        kept (directional forgetting: Cao and Schwartz 2000, Automatica 36). ``news``: what it adds to the sums."""
        informed = terms @ self._sums
        along = informed[:-1]
        if (known := along @ terms) > 0:
            self._sums -= along[:, None] * (forgotten / known * informed)
        self._sums += news

    def _little(self) -> Floats:
        """For each term, up to which sum of squares steps tell little of it."""
        of_prompts = NOISE / self._first**2 if self._first else 1.0
        return np.array([*(self._unit * one for one in LITTLE), *[of_prompts] * PROMPT_TERMS])

    def _solve(self) -> None:
        little, told = self._little(), self._sums[:, -1].copy()
        of_tokens = OF_PROMPTS + OF_TOKENS
        told[of_tokens] += little[of_tokens] * self._first
        known = self._sums[:, :-1] + np.diag(little) + ALIKE * self._unit * APART
        variances = np.linalg.inv(known)
        self._doubt_of_requests = NOISE * float(variances[OF_REQUESTS, OF_REQUESTS])
        self._covariance = np.float64(NOISE * (self._first > 0)) * variances[OF_PROMPTS:, OF_PROMPTS:]
        found = variances @ told
        # None of them makes a step faster.
        while found[least := 1 + int(found[1:].argmin())] < 0:
            shares = variances[least] / variances[least, least]
            found = found - found[least] * shares
            variances = variances - variances[least][:, None] * shares
            # Rounding would leave a little of the term, perhaps below 0 again.
            found[least], variances[least], variances[:, least], variances[least, least] = 0.0, 0.0, 0.0, 1.0
        self.context, self.requests = found[OF_CONTEXT:OF_PROMPTS].tolist()
        self.prompts = found[OF_PROMPTS:]

    def limit(self, known: Known) -> None:
        """Leave no size less than a share of its work for its rows."""
        often = known.counts >= FEW
        beside, most = self.of(known.context, known.requests)[often], (1 - ROWS) * known.work[often]
        if np.any(beside > most):
            share = float(np.min(most / np.maximum(beside, most)))
            self.context, self.requests = share * self.context, share * self.requests

    def hoped(self, known: Known) -> float:
        """What a request may be hoped to take: the more it is, the less is left for rows, of which drafts have more."""
        often = known.counts >= FEW
        if not np.any(often):
            return self.requests
        left = (1 - ROWS) * known.work[often] - self.context * known.context[often]
        most = float(np.min(left / np.maximum(known.requests[often], 1.0)))
        return max(min(self.requests + math.sqrt(self._doubt_of_requests), most), self.requests)
