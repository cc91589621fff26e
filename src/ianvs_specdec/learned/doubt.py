"""From signals of doubt to one score: their mean, or a probability fitted from outcomes.

A fitted one is a logistic regression on the signals' logits: with one signal Platt scaling, a monotone map; with
several a learned scorer as in FrugalGPT (arXiv 2305.05176), of signals in place of the text. The file is JSON:
``format`` (1), ``slopes`` (signal -> number from 0), ``offset``, ``threshold``, and ``report``: what it was fitted to.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ianvs_specdec.checkpoints.documents import read_object
from ianvs_specdec.errors import UserError
from ianvs_specdec.identity import write_atomically

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

    def score(self, doubts: Mapping[str, float]) -> float:
        """From 0 to 1, of the doubts by signal."""
        if self.slopes is None:
            return sum(doubts[name] for name in self.signals) / len(self.signals)
        weighed = sum(slope * logit(doubts[name]) for name, slope in self.slopes.items())
        return 0.5 * (1.0 + math.tanh(0.5 * (weighed + self.offset)))

    def save(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        fitted = {"slopes": self.slopes, "offset": self.offset, "threshold": self.threshold, "report": self.report}
        write_atomically(path, json.dumps({"format": FORMAT, **fitted}, indent=2) + "\n")

    @classmethod
    def load(cls, path: Path) -> Doubt:
        """Raises UserError that names the file."""
        try:
            told = read_object(path)
        except UserError as error:
            raise UserError(f"calibration {error}; specdec route calibrate makes one", key="calibration") from None
        if not _whole(told):
            raise UserError(f"calibration {path}: not a file that specdec route calibrate made", key="calibration")
        slopes, report = told["slopes"], told.get("report")
        return cls(tuple(slopes), slopes, told["offset"], told["threshold"], report if isinstance(report, dict) else {})


def _whole(told: Any) -> bool:
    """Whether a calibration is complete and makes sense."""
    slopes = told.get("slopes") if isinstance(told, dict) and told.get("format") == FORMAT else None
    if not isinstance(slopes, dict) or not slopes:
        return False
    numbers = [told.get("offset"), told.get("threshold"), *slopes.values()]
    if not all(type(value) in (int, float) and math.isfinite(value) for value in numbers):
        return False
    return min(slopes.values()) >= 0 and 0 <= told["threshold"] <= 1
