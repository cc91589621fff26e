"""Metrics: functions of the true labels and the answers that give one value for the leaderboard."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from core.common.section import Section


@dataclass
class Metric:
    """``name``: its alias and its column; ``url``: the plugin file; ``at``: its place in the testenv file."""

    name: str
    url: str
    at: Section
    function: Any = None

    def compute(self, y_true: Any, y_pred: list[Any]) -> float | int | str | None:
        """One plain value; None where the metric says NaN, that is, undefined. TypeError for anything else."""
        value = self.function(y_true, y_pred)
        if hasattr(value, "item") and getattr(value, "size", 0) == 1:  # numpy's and torch's scalars
            value = value.item()
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return None
        if isinstance(value, (int, float, str)):
            return value
        raise TypeError(f"a metric must return one number, {self.name!r} returned {type(value).__name__}")
