"""What steps take that read prompts as well."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from ianvs_specdec.lengths.beside import Beside
from ianvs_specdec.lengths.sizes import ROWS, Contents, Known, Size, class_of


class Reading:
    """The sizes of such steps, apart from those of others. Prompts may be most of such a step, so it tells less. Where
    every step reads some, as on a busy server with short answers, it is all there is to know."""

    def __init__(self) -> None:
        self.sizes: dict[int, Size] = {}

    def size(self, step: Contents, work: float) -> Size:
        """What is known of steps of that size; of the first one, that it took so much ``work``."""
        return self.sizes.setdefault(class_of(step.rows), Size.first(step, math.log(work)))

    def without(self, known: Known, beside: Beside) -> Known:
        """What is ``known`` of the ``sizes``, less the prompts. If these take more than is thought, the rows of all
        sizes take less: they are off together, and their differences are known better than each of them."""
        work = np.maximum(known.work - beside.prompts @ known.prompts, ROWS * known.work)
        doubt = beside.doubt(known.prompts)
        variances = (known.variances * known.work**2 + doubt) / work**2
        return replace(known, work=work, variances=variances, shared=np.sqrt(doubt))
