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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.models.documents import read_object
from ianvs_specdec.records.identity import write_atomically

FORMAT = 1
LARGEST = 1e100
"""No number is beyond it; NaN and infinity are not within."""
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
        fitted = {"format": FORMAT, **self._fitted(), "report": self.report}
        if self.after is not None:
            fitted["after"] = {"tokens": self.after.tokens, **self.after.doubt._fitted()}
        write_atomically(path, json.dumps(fitted, indent=2) + "\n")

    def _fitted(self) -> dict[str, Any]:
        return {"slopes": self.slopes, "offset": self.offset, "threshold": self.threshold}

    @classmethod
    def load(cls, path: Path) -> Doubt:
        """Raises UserError that names the file."""
        try:
            told = msgspec.convert(read_object(path), _File)
        except UserError as error:
            raise UserError(f"calibration {error}; specdec route calibrate makes one", key="calibration") from None
        except msgspec.ValidationError as error:
            raise _not_a_calibration(path, str(error)) from error
        after = told.after
        if after is not None and not set(after.slopes) <= set(told.slopes):
            raise _not_a_calibration(path, "after has other signals")
        return cls(
            tuple(told.slopes),
            told.slopes,
            told.offset,
            told.threshold,
            told.report,
            None
            if after is None
            else Beginning(after.tokens, cls(tuple(after.slopes), after.slopes, after.offset, after.threshold)),
        )


@dataclass(frozen=True)
class Beginning:
    """What the first ``tokens`` tokens of the edge's answer amount to."""

    tokens: int
    doubt: Doubt


class _Fit(msgspec.Struct, kw_only=True):
    slopes: Annotated[dict[str, Annotated[float, msgspec.Meta(ge=0, le=LARGEST)]], msgspec.Meta(min_length=1)]
    offset: Annotated[float, msgspec.Meta(ge=-LARGEST, le=LARGEST)]
    threshold: Annotated[float, msgspec.Meta(ge=0, le=1)]


class _After(_Fit, kw_only=True):
    tokens: Annotated[int, msgspec.Meta(ge=1)]


class _File(_Fit, kw_only=True):
    format: Literal[1]
    report: dict[str, Any] = {}
    after: _After | None = None


def _not_a_calibration(path: Path, reason: str) -> UserError:
    return UserError(f"calibration {path}: not a file that specdec route calibrate made: {reason}", key="calibration")
