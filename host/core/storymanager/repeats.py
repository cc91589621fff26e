"""Repeats of test cases: means, Student's t intervals, and the values of each repeat."""

from __future__ import annotations

import math
import os
import re
import statistics
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from core.common.cells import csv_text
from core.common.files import write_atomic, writing

INTERVAL = " CI95"
"""Suffix of a metric that is half the width of another metric's 95 % interval."""
FILE = "repeats.csv"

Values = dict[str, Any]

_OF_REPEAT = re.compile(r"(?:answers|environment)\.repeat-(\d+)\.jsonl?")


def combined(repeats: Sequence[Values]) -> Values:
    """The mean of each metric over the repeats; for ``X CI95``, half the width of the 95 % interval of the mean of X by
    Student's t distribution. None if a value is undefined in one repeat, or if texts differ."""
    if len(repeats) == 1:
        return dict(repeats[0])
    result: Values = {}
    for name in repeats[0]:
        if name.endswith(INTERVAL):
            result[name] = _half_width([values.get(name.removesuffix(INTERVAL)) for values in repeats])
        else:
            result[name] = _mean([values.get(name) for values in repeats])
    return result


def _half_width(column: list[Any]) -> float | None:
    from scipy.special import stdtrit

    if not _numbers(column):
        return None
    quantile = float(stdtrit(len(column) - 1, 0.975))
    return float(f"{quantile * statistics.stdev(column) / math.sqrt(len(column)):.6g}")


def _mean(column: list[Any]) -> Any:
    """The common value if all are equal (counts stay integers), else the mean with six significant digits."""
    if all(value == column[0] for value in column):
        return column[0]
    return float(f"{statistics.fmean(column):.6g}") if _numbers(column) else None


def _numbers(column: list[Any]) -> bool:
    return all(isinstance(value, (int, float)) for value in column)


def check_intervals(metrics: Sequence[Any]) -> None:
    """Add an error for each metric ``X CI95`` without the metric X."""
    names = {metric.name for metric in metrics}
    for metric in metrics:
        of = metric.name.removesuffix(INTERVAL)
        if of not in names:
            metric.at.add(f"with repeats, {metric.name!r} is the interval of {of!r} over them: add the metric {of!r}")


def save_repeats(folder: str, repeats: Sequence[Values]) -> None:
    """Write the values of each repeat, and remove files of an earlier run with more repeats."""
    path = os.path.join(folder, FILE)
    if len(repeats) > 1:
        names = list(repeats[0])
        rows = [[number, *(values.get(name) for name in names)] for number, values in enumerate(repeats, 1)]
        write_atomic(path, csv_text([["repeat", *names], *rows]))
    with writing(folder):
        names = os.listdir(folder)
    for name in names:
        match = _OF_REPEAT.fullmatch(name)
        if (match and int(match[1]) > len(repeats)) or (name == FILE and len(repeats) == 1):
            with suppress(OSError):
                os.unlink(os.path.join(folder, name))
