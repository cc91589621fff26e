"""From signals of doubt to one score: their mean, or a logistic regression on their logits (with one signal Platt
scaling; FrugalGPT, arXiv 2305.05176, learns a scorer of the text). The file is JSON, see ``_File``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.models.json_files import read_object
from ianvs_specdec.records.identity import write_atomically
from ianvs_specdec.routing.learned import logistic
from ianvs_specdec.routing.outcomes.recorded import Floats

FORMAT = 1
LARGEST = 1e100
"""No number is beyond it; NaN and infinity are not within."""
RIDGE = 1e-2
"""Draws slopes to 0 where the data say nothing."""
EPSILON = 1e-4
"""Signals are taken to be at least this far from 0 and 1, where a logit has no end."""


@dataclass(frozen=True)
class UncertaintyModel:
    """Without ``slopes`` the score is the signals' mean."""

    signals: tuple[str, ...]
    slopes: Mapping[str, float] | None = None
    offset: float = 0.0
    threshold: float = 0.5
    report: Mapping[str, Any] = field(default_factory=dict)
    early: EarlyModel | None = None

    def score(self, doubts: Mapping[str, float]) -> float:
        if self.slopes is None:
            return sum(doubts[name] for name in self.signals) / len(self.signals)
        return float(scores(doubts, self.slopes, self.offset))

    def save(self, path: Path) -> None:
        fitted = {"format": FORMAT, **self._fitted(), "report": self.report}
        if self.early is not None:
            fitted["after"] = {"tokens": self.early.tokens, **self.early.model._fitted()}
        write_atomically(path, json.dumps(fitted, indent=2) + "\n")

    def _fitted(self) -> dict[str, Any]:
        return {"slopes": self.slopes, "offset": self.offset, "threshold": self.threshold}

    @classmethod
    def load(cls, path: Path) -> UncertaintyModel:
        """Raises UserError that names the file."""
        try:
            file = msgspec.convert(read_object(path), _File)
        except UserError as error:
            raise UserError(f"calibration {error}; specdec route calibrate makes one", key="calibration") from None
        except msgspec.ValidationError as error:
            raise _not_a_calibration(path, str(error)) from error
        after = file.after
        if after is not None and not set(after.slopes) <= set(file.slopes):
            raise _not_a_calibration(path, "after has other signals")
        return cls(
            tuple(file.slopes),
            file.slopes,
            file.offset,
            file.threshold,
            file.report,
            None
            if after is None
            else EarlyModel(after.tokens, cls(tuple(after.slopes), after.slopes, after.offset, after.threshold)),
        )


@dataclass(frozen=True)
class EarlyModel:
    tokens: int
    model: UncertaintyModel


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


def fit(doubts: Mapping[str, Floats], labels: Floats) -> tuple[dict[str, float], float]:
    """Slopes by signal, and the offset, of the logistic regression of ``labels`` (float64 [queries], 0 to 1) on the
    logits of ``doubts`` (float64 [queries] each, 0 to 1). Slopes are not below 0, so that no signal counts as its
    contrary. Raises UserError if the labels are all alike, or all slopes 0.
    """
    if labels.min() == labels.max():
        raise UserError(f"nothing to learn: all {len(labels)} queries have the same label, {labels[0]:g}")
    x = np.stack([logistic.logit(values, EPSILON) for values in doubts.values()], axis=1)
    slopes, offset = logistic.fit(x, labels, ridge=RIDGE, least=0.0)
    if slopes.max() <= 0:
        raise UserError(f"nothing to learn: none of {', '.join(doubts)} is higher where the cloud answers better")
    return dict(zip(doubts, slopes.tolist(), strict=True)), offset


def scores(doubts: Mapping[str, Any], slopes: Mapping[str, float], offset: float) -> Any:
    """From 0 to 1, of doubts that are numbers or float64 [queries]."""
    weighed = [slope * logistic.logit(doubts[name], EPSILON) for name, slope in slopes.items()]
    return logistic.sigmoid(np.sum(weighed, axis=0) + offset)


def cross_fitted(doubts: Mapping[str, Floats], labels: Floats, folds: Sequence[np.ndarray]) -> Floats:
    """Scores [queries], those of each of ``folds`` (row numbers) from a fit to the others."""
    found = np.empty(len(labels))
    for held in folds:
        rest = np.setdiff1d(np.arange(len(labels)), held)
        fitted = fit({name: values[rest] for name, values in doubts.items()}, labels[rest])
        found[held] = scores({name: values[held] for name, values in doubts.items()}, *fitted)
    return found
