"""One score from several uncertainty signals: their mean, or a logistic regression on their logits.

With one signal the regression is Platt scaling. FrugalGPT (arXiv 2305.05176) learns a scorer of the text instead. The
calibration file is JSON, see ``_File``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.storage.atomic import write_atomically
from ianvs_specdec.models.json_files import read_object
from ianvs_specdec.routing.learned import logistic
from ianvs_specdec.routing.outcomes.recorded import Floats

FORMAT = 1
MAX_NUMBER = 1e100
"""Largest number in a file. NaN and infinity are refused."""
RIDGE = 1e-2
"""L2 regularization of the slopes."""
EPSILON = 1e-4
"""Signals are clipped to this distance from 0 and 1, where the logit is infinite."""


@dataclass(frozen=True)
class UncertaintyModel:
    """Weights of the signals and the decision threshold. Without ``slopes`` the score is the mean of the signals.

    ``early``: the model of the first tokens of an answer.
    """

    signals: tuple[str, ...]
    slopes: Mapping[str, float] | None = None
    offset: float = 0.0
    threshold: float = 0.5
    report: Mapping[str, Any] = field(default_factory=dict)
    early: EarlyModel | None = None

    def score(self, values: Mapping[str, float]) -> float:
        """From 0 to 1, of the value of each signal."""
        if self.slopes is None:
            return sum(values[name] for name in self.signals) / len(self.signals)
        return float(scores(values, self.slopes, self.offset))

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
        early = None
        if (after := file.after) is not None:
            if not set(after.slopes) <= set(file.slopes):
                raise _not_a_calibration(path, "after has other signals")
            early = EarlyModel(after.tokens, cls._of(after))
        return replace(cls._of(file), report=file.report, early=early)

    @classmethod
    def _of(cls, fit: _Fit) -> UncertaintyModel:
        return cls(tuple(fit.slopes), fit.slopes, fit.offset, fit.threshold)


@dataclass(frozen=True)
class EarlyModel:
    """A model of the first ``tokens`` tokens of an answer."""

    tokens: int
    model: UncertaintyModel


class _Fit(msgspec.Struct, kw_only=True):
    slopes: Annotated[dict[str, Annotated[float, msgspec.Meta(ge=0, le=MAX_NUMBER)]], msgspec.Meta(min_length=1)]
    offset: Annotated[float, msgspec.Meta(ge=-MAX_NUMBER, le=MAX_NUMBER)]
    threshold: Annotated[float, msgspec.Meta(ge=0, le=1)]


class _After(_Fit, kw_only=True):
    tokens: Annotated[int, msgspec.Meta(ge=1)]


class _File(_Fit, kw_only=True):
    format: Literal[1]
    report: dict[str, Any] = {}
    after: _After | None = None


def _not_a_calibration(path: Path, reason: str) -> UserError:
    return UserError(f"calibration {path}: not a file that specdec route calibrate made: {reason}", key="calibration")


def fit(signals: Mapping[str, Floats], labels: Floats) -> tuple[dict[str, float], float]:
    """Slopes by signal and the offset of a logistic regression of the labels on the logits of the signals.

    ``signals``: float64 [queries] each, 0 to 1; ``labels``: float64 [queries], 0 to 1. Slopes are never negative.
    Raises UserError if all labels are equal or all slopes are 0.
    """
    if labels.min() == labels.max():
        raise UserError(f"nothing to learn: all {len(labels)} queries have the same label, {labels[0]:g}")
    x = np.stack([logistic.logit(values, EPSILON) for values in signals.values()], axis=1)
    slopes, offset = logistic.fit(x, labels, ridge=RIDGE, least=0.0)
    if slopes.max() <= 0:
        raise UserError(f"nothing to learn: none of {', '.join(signals)} is higher where the cloud answers better")
    return dict(zip(signals, slopes.tolist(), strict=True)), offset


def scores(signals: Mapping[str, Any], slopes: Mapping[str, float], offset: float) -> Any:
    """Scores from 0 to 1. Signals are numbers, or float64 [queries]."""
    weighted = [slope * logistic.logit(signals[name], EPSILON) for name, slope in slopes.items()]
    return logistic.sigmoid(np.sum(weighted, axis=0) + offset)


def cross_fitted(signals: Mapping[str, Floats], labels: Floats, folds: Sequence[np.ndarray]) -> Floats:
    """Scores [queries]. Each of ``folds`` (row numbers) is scored by a fit to the other folds."""
    found = np.empty(len(labels))
    for held in folds:
        rest = np.setdiff1d(np.arange(len(labels)), held)
        fitted = fit({name: values[rest] for name, values in signals.items()}, labels[rest])
        found[held] = scores({name: values[held] for name, values in signals.items()}, *fitted)
    return found
