"""Steps of about the same number of rows, and what is known of what they take."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ianvs_specdec.lengths.evidence import Floats

Amount = Floats | float

PER_DOUBLING = 4
"""Classes of sizes for each doubling, from that size on; smaller sizes are classes of their own."""
NOISE = 0.1**2
"""The variance of the log time of a step, as all variances here."""
SHAPE, UNKNOWN = 0.013**2, 1.0**2
"""By how much the share that a size has of the machine's time changes from step to step, seen or not: after a hundred
steps it is known to an eighth. At most it is as if nothing were known."""
FEW = 3
"""Steps of a size until a surprise tells of the speed rather than of the size, and until a bend there is believed."""
OUTLIER = 0.3
"""In log seconds: what a single step may say at the most. Slow steps are a third slower and more."""
NEW = 0.7
"""In log seconds: by how much the first step of a size may be above what was expected."""
MUCH = 0.01
"""In log seconds: a step that changes what its size takes by less tells of little."""
OFTEN = 50
"""Steps of a size over which its averages are."""
ROWS = 0.05
"""The share of a step's work that is at least for its rows."""


FREE = 0.0, 128.0, 256.0
"""Tokens of prompts in a step beyond each of which one more may take longer. A processor that waits for the weights has
room for some of them: its operations over its bytes per second say how many, some 150 to 300 on the GPUs of a data
center (``docs/simulate.md`` has 221), hardly any on a CPU. So what prompts take is a line with bends at these places,
all upward."""
ANY = 64.0
"""Reading any prompt takes something, however short it is: for one thing, requests join. On a CPU it was seen to be
what some tens of its tokens take, and so it is counted in these."""
PROMPT_TERMS = 1 + len(FREE)
"""Those of which what prompts take is the sum: see ``terms_of``."""


@lru_cache(maxsize=4096)
def class_of(rows: int) -> int:
    return rows if rows < PER_DOUBLING else int(PER_DOUBLING * (1 + math.log2(rows / PER_DOUBLING)))


@lru_cache(maxsize=4096)
def terms_of(prompts: int) -> tuple[float, ...]:
    """``ANY`` if there are tokens of prompts, and how many are beyond each of ``FREE``."""
    return (ANY if prompts else 0.0, *[max(prompts - free, 0.0) for free in FREE])


class Contents(NamedTuple):
    """What a step has: rows of trees (tokens), for so many requests, whose sequences hold the ``context`` (tokens), and
    tokens of ``prompts``."""

    rows: int
    context: int
    requests: int
    prompts: int = 0


@dataclass(eq=False, slots=True)
class Size:
    """Steps of about the same size: the log of their ``work`` and its variance when it was last seen, at step ``when``
    and in the ``state`` of then, how surprising the one ``before`` was, and what they have on average; of ``prompts``
    that is each of their terms."""

    work: float
    variance: float
    rows: float
    context: float
    requests: float
    prompts: tuple[float, ...]
    count: int = 0
    when: int = 0
    state: float = 0.0
    before: float = 0.0

    @classmethod
    def first(cls, step: Contents, work: float) -> Size:
        """The first step of a size."""
        return cls(work, UNKNOWN, step.rows, step.context, step.requests, terms_of(step.prompts))

    def variance_now(self, samples: int, state: float) -> float:
        """What has changed the machine, its speed or another size, may have changed this size's share as well.
        ``state``: both, in log seconds."""
        changed, age = max(abs(state - self.state) - OUTLIER, 0.0), samples - self.when
        return min(self.variance + SHAPE * age + changed**2, UNKNOWN)

    def away(self, step: Contents) -> tuple[float, ...]:
        """How much more context a step has, how many more requests, and how much more of each term of prompts."""
        more = [one - average for one, average in zip(terms_of(step.prompts), self.prompts, strict=True)]
        return step.context - self.context, step.requests - self.requests, *more

    def work_at(self, beside: float) -> float:
        """The log of its work where that beside the rows is so much more."""
        whole = math.exp(self.work)
        return math.log(max(whole + beside, ROWS * whole)) if beside else self.work

    def told(self, moved: float) -> bool:
        """Whether the latest step, which changed the work by so much, told of much: a new size is all news."""
        return self.count <= FEW or abs(moved) > MUCH

    def seen(self, step: Contents, beside: float, samples: int, state: float) -> None:
        """There was such a step. What it has more than the average takes so much ``beside`` the rows."""
        self.when, self.state = samples, state
        self.count = min(self.count + 1, OFTEN)
        self.work = self.work_at(beside / self.count)
        self.rows += (step.rows - self.rows) / self.count
        context, requests, *more = self.away(step)
        self.context += context / self.count
        self.requests += requests / self.count
        self.prompts = tuple([average + one / self.count for average, one in zip(self.prompts, more, strict=True)])


@dataclass(frozen=True)
class Known:
    """Sizes in columns, by class: what each has on average, their work and the variance of its log. ``prompts`` are
    ``[PROMPT_TERMS, sizes]``. Of the work's errors, the part that is ``shared`` is one and the same error, so many
    times."""

    classes: NDArray[np.int64]
    rows: Floats
    work: Floats
    variances: Floats
    context: Floats
    requests: Floats
    counts: Floats
    prompts: Floats
    shared: Floats

    @classmethod
    def of(cls, sizes: Iterable[Size], samples: int, state: float) -> Known:
        """What is known at that step, in that state of the machine."""
        columns = [
            (one.rows, one.work, one.variance_now(samples, state), one.context, one.requests, one.count, *one.prompts)
            for one in sizes
        ]
        table = np.array(sorted(columns)).reshape(-1, 6 + PROMPT_TERMS).T
        rows, work, variances, context, requests, counts = table[:6]
        classes = np.array([class_of(round(one)) for one in rows.tolist()], dtype=int)
        return cls(classes, rows, np.exp(work), variances, context, requests, counts, table[6:], np.zeros(len(rows)))

    def place(self, size: Size) -> int:
        """Where a size is among these."""
        return int(np.searchsorted(self.classes, class_of(round(size.rows))))

    def joined(self, other: Known) -> Known:
        """With what else is known of the same sizes and of others; neither has prompts."""
        if not len(other.rows):
            return self
        each = np.concatenate((self.classes, other.classes))
        classes = np.unique(each)
        of_class = (classes[:, None] == each).astype(float)
        columns = np.concatenate((self._columns, other._columns), axis=1)
        weights = 1 / (columns[1] * columns[0] ** 2)
        sums = of_class @ weights
        work, _, rows, context, requests, shared = (of_class @ (weights * columns).T / sums[:, None]).T
        variances = np.minimum(1 / (sums * work**2), UNKNOWN)
        counts = of_class @ np.concatenate((self.counts, other.counts))
        none = np.zeros((PROMPT_TERMS, len(rows)))
        return Known(classes, rows, work, variances, context, requests, counts, none, shared)

    @property
    def _columns(self) -> Floats:
        """What two sources of the same size are averaged by, work and variances first, and what else is averaged."""
        return np.array((self.work, self.variances, self.rows, self.context, self.requests, self.shared))
