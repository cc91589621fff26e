"""Says on the screen when an accuracy is that of answers which could not be read."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ianvs_specdec.common.errors import warn_once
from ianvs_specdec.report.metrics.columns import chance_level, mean
from ianvs_specdec.report.metrics.table import Table

MANY = 0.1
"""Share of the answers from which on a note reports it: a few come from any model."""


def telling(
    accuracy: Callable[[Sequence[Any], Sequence[Any]], float],
) -> Callable[[Sequence[Any], Sequence[Any]], float]:
    """The metric, which warns where it says little."""

    @functools.wraps(accuracy)
    def metric(y_true: Sequence[Any], y_pred: Sequence[Any]) -> float:
        _tell(Table.of(y_true, y_pred))
        return accuracy(y_true, y_pred)

    return metric


def _tell(table: Table) -> None:
    """Warn if many answers hold no letter or number that could be read. UserError where scores cannot be had."""
    unparsed = table.query("unparsed")
    looked = int(np.isfinite(unparsed).sum())
    if not looked or (missing := int(np.nansum(unparsed))) < MANY * looked:
        return
    chance = chance_level(table)
    guessing = "" if math.isnan(chance) else f"; guessing gives {chance:.1f}"
    warn_once(
        f"{missing} of {looked} answers hold no letter or number that could be read, and count as wrong: Accuracy is "
        f"{mean(table.query('score')):.1f}{guessing}. Worked examples in the prompt or a chat template may help"
    )
