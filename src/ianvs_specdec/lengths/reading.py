"""What steps take that read prompts as well."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from ianvs_specdec.lengths.beside import Beside
from ianvs_specdec.lengths.sizes import FEW, NEW, NOISE, OUTLIER, ROWS, Contents, Known, Size, class_of


class Reading:
    """The sizes of such steps, apart from those of others. Prompts may be most of such a step, so it tells less. Where
    every step reads some, as on a busy server with short answers, it is all there is to know."""

    def __init__(self) -> None:
        self.sizes: dict[int, Size] = {}

    def add(self, step: Contents, work: float, alone: Size | None, beside: Beside, samples: int, state: float) -> bool:
        """Step number ``samples``, in that ``state`` of the machine, took so much ``work`` in units of its speed.
        ``alone``: what is known of its size without prompts. Returns whether the step told of much."""
        beside.begin(step.prompts, work)
        size = self.sizes.setdefault(class_of(step.rows), Size.first(step, math.log(work)))
        more, average = beside.of(*size.away(step)), math.exp(size.work)
        # Its noise is a part of what it took, even where what is known leads to expect hardly anything.
        scale = max(average + more, work)
        limit = scale * math.expm1(NEW if size.count < FEW else OUTLIER)
        surprise = max(min(work - more - average, limit), -limit)
        variance = size.variance_now(samples, state)
        doubt = variance + (NOISE * scale**2 + beside.doubt * (step.prompts - size.prompts) ** 2) / average**2
        settled = size.work_at(surprise * variance / doubt)
        moved, size.work = settled - size.work, settled
        size.variance = variance * (1 - variance / doubt)
        known = 0.0
        if alone:
            rest = math.exp(alone.work)
            known = NOISE / (NOISE + alone.variance_now(samples, state) * (rest / scale) ** 2)
            beside.learn(step, alone, scale, average + more + surprise - rest, known)
        beside.learn(step, size, scale, surprise + more, 1 - known)
        size.seen(step, more, samples, state)
        return size.told(moved)

    def without(self, known: Known, beside: Beside) -> Known:
        """What is ``known`` of the ``sizes``, less the prompts."""
        work = np.maximum(known.work - beside.prompts * known.prompts, ROWS * known.work)
        variances = known.variances * known.work**2 + beside.doubt * known.prompts**2
        return replace(known, work=work, variances=variances / work**2)
