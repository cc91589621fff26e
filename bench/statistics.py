"""Medians over repeats, ratios of sums over prompts, and their 95 % bootstrap intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import scipy.stats

RESAMPLES = 2000


@dataclass
class Run:
    """One prompt decoded once. ``prefills``: the target's ``forwards`` that verified nothing."""

    token_ids: list[int]
    seconds: float
    forwards: int
    prefills: int = 1
    ttft: float | None = None


@dataclass
class Estimate:
    value: float
    low: float
    high: float


@dataclass
class Summary:
    """One row. ``tau``: output tokens per target forward, without prefills and their tokens. ``same_output``: share of
    prompts with the reference output. ``near_tie``: share whose first difference is at a near-tie."""

    name: str
    tokens: int
    tokens_per_second: Estimate
    tau: float
    same_output: float
    near_tie: float
    ttft: float | None = None


def bootstrap(statistic: Callable[..., Any], *columns: Sequence[float]) -> Estimate:
    """``statistic(*columns, axis)`` of paired values by prompt or round, with a 95 % percentile bootstrap interval."""
    found = [np.asarray(column, dtype=float) for column in columns]
    value = float(statistic(*found, axis=-1))
    if len(found[0]) < 2:
        return Estimate(value, value, value)
    options = {"paired": True, "vectorized": True, "method": "percentile", "n_resamples": RESAMPLES, "rng": 0}
    interval = scipy.stats.bootstrap(found, statistic, **options).confidence_interval
    return Estimate(value, float(interval.low), float(interval.high))


def middle(values: Sequence[float]) -> Estimate:
    """The median."""
    return bootstrap(np.median, values)


def _rate(tokens: np.ndarray, seconds: np.ndarray, axis: int) -> Any:
    return tokens.sum(axis) / seconds.sum(axis)


def _ratio(tokens: np.ndarray, seconds: np.ndarray, base: np.ndarray, base_seconds: np.ndarray, axis: int) -> Any:
    return _rate(tokens, seconds, axis) / _rate(base, base_seconds, axis)


def summarise(name: str, runs: list[list[Run]], reference: list[list[Run]], near_ties: list[set[int]]) -> Summary:
    tokens, seconds = _speed(runs)
    differences = [
        first_difference(repeats[0].token_ids, expected[0].token_ids)
        for repeats, expected in zip(runs, reference, strict=True)
    ]
    at_ties = [position in ties for position, ties in zip(differences, near_ties, strict=True)]
    return Summary(
        name=name,
        tokens=int(tokens.sum()),
        tokens_per_second=bootstrap(_rate, tokens, seconds),
        tau=_tau(runs),
        same_output=differences.count(None) / len(differences),
        near_tie=sum(at_ties) / len(at_ties),
        ttft=_ttft(runs),
    )


def speed_ratio(runs: list[list[Run]], baseline: list[list[Run]]) -> Estimate:
    """Token/s of ``runs`` over token/s of ``baseline``, paired by prompt."""
    return bootstrap(_ratio, *_speed(runs), *_speed(baseline))


def first_difference(got: list[int], expected: list[int]) -> int | None:
    """The first position at which two outputs differ, None if they are equal."""
    if got == expected:
        return None
    pairs = enumerate(zip(got, expected, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(got), len(expected)))


def _speed(runs: list[list[Run]]) -> tuple[np.ndarray, np.ndarray]:
    """New tokens and median seconds over the repeats, per prompt."""
    tokens = np.array([len(repeats[0].token_ids) for repeats in runs], dtype=float)
    return tokens, np.array([median(run.seconds for run in repeats) for repeats in runs])


def _ttft(runs: list[list[Run]]) -> float | None:
    """Median over prompts of the median over repeats."""
    times = [[run.ttft for run in repeats if run.ttft is not None] for repeats in runs]
    return median(median(repeats) for repeats in times) if all(times) else None


def _tau(runs: list[list[Run]]) -> float:
    firsts = [repeats[0] for repeats in runs]
    steps = sum(run.forwards - run.prefills for run in firsts)
    return sum(len(run.token_ids) - run.prefills for run in firsts) / steps if steps else 1.0
