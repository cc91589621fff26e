"""From signals of doubt to one score: their mean, or a probability fitted from outcomes.

A fitted one is a logistic regression on the signals' logits: with one signal Platt scaling, a monotone map; with
several a learned scorer as in FrugalGPT (arXiv 2305.05176), of signals in place of the text. The file is JSON:
``format`` (1), ``slopes`` (signal -> number from 0), ``offset``, ``threshold``, and ``report``: what it was fitted to.
Where it can be told from the beginning of the edge's answer, too, ``after`` has ``tokens``, how long that is, and its
own ``slopes``, ``offset`` and ``threshold``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.models.documents import read_object
from ianvs_specdec.records.identity import write_atomically

FORMAT = 1
EPSILON = 1e-4
"""Signals are taken to be at least this far from 0 and 1, where a logit has no end."""


def logit(doubt: float) -> float:
    clipped = min(max(doubt, EPSILON), 1.0 - EPSILON)
    return math.log(clipped / (1.0 - clipped))


@dataclass(frozen=True)
class Doubt:
    """``slopes`` and ``offset`` are those of the logits; without slopes the score is the signals' mean."""

    signals: tuple[str, ...]
    slopes: Mapping[str, float] | None = None
    offset: float = 0.0
    threshold: float = 0.5
    report: Mapping[str, Any] = field(default_factory=dict)
    after: Beginning | None = None

    def score(self, doubts: Mapping[str, float]) -> float:
        """From 0 to 1, of the doubts by signal."""
        if self.slopes is None:
            return sum(doubts[name] for name in self.signals) / len(self.signals)
        weighed = sum(slope * logit(doubts[name]) for name, slope in self.slopes.items())
        return 0.5 * (1.0 + math.tanh(0.5 * (weighed + self.offset)))

    def save(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        fitted: dict[str, Any] = {**self._fitted(), "report": self.report}
        if self.after is not None:
            fitted["after"] = {"tokens": self.after.tokens, **self.after.doubt._fitted()}
        write_atomically(path, json.dumps({"format": FORMAT, **fitted}, indent=2) + "\n")

    def _fitted(self) -> dict[str, Any]:
        return {"slopes": self.slopes, "offset": self.offset, "threshold": self.threshold}

    @classmethod
    def _of(cls, told: Mapping[str, Any]) -> Doubt:
        return cls(tuple(told["slopes"]), told["slopes"], told["offset"], told["threshold"])

    @classmethod
    def load(cls, path: Path) -> Doubt:
        """Raises UserError that names the file."""
        try:
            told = read_object(path)
        except UserError as error:
            raise UserError(f"calibration {error}; specdec route calibrate makes one", key="calibration") from None
        after = told.get("after") if isinstance(told, dict) else None
        if not isinstance(told, dict) or told.get("format") != FORMAT or not _whole(told) or not _begins(after, told):
            raise UserError(f"calibration {path}: not a file that specdec route calibrate made", key="calibration")
        report = told.get("report")
        return replace(
            cls._of(told),
            report=report if isinstance(report, dict) else {},
            after=None if after is None else Beginning(after["tokens"], cls._of(after)),
        )


@dataclass(frozen=True)
class Beginning:
    """What the first ``tokens`` tokens of the edge's answer amount to."""

    tokens: int
    doubt: Doubt


def _begins(after: Any, told: Mapping[str, Any]) -> bool:
    """Whether this is what a calibration says of an answer's beginning, or None."""
    if after is None:
        return True
    if not isinstance(after, dict) or not _whole(after) or not set(after["slopes"]) <= set(told["slopes"]):
        return False
    return type(after.get("tokens")) is int and after["tokens"] >= 1


def _whole(told: Mapping[str, Any]) -> bool:
    """Whether a fit is complete and makes sense."""
    slopes = told.get("slopes")
    if not isinstance(slopes, dict) or not slopes:
        return False
    numbers = [told.get("offset"), told.get("threshold"), *slopes.values()]
    if not all(type(value) in (int, float) and math.isfinite(value) for value in numbers):
        return False
    return min(slopes.values()) >= 0 and 0 <= told["threshold"] <= 1
