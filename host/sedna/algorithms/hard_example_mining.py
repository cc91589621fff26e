"""Sedna's own routers: a module of type hard_example_mining without ``url`` names one of these.

They read the result of an object detector or a classifier, so they need the mode inference-then-mining.
"""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from sedna.common.class_factory import ClassFactory, ClassType

SCORE = 4  # index of the confidence in a detected box: xmin, ymin, xmax, ymax, confidence, label


class BaseFilter(ABC):
    """A router: returns whether an item is hard, that is, for the cloud."""

    @abstractmethod
    def __call__(self, infer_result: Any = None) -> bool: ...


@ClassFactory.register(ClassType.HEM, alias="Threshold")
class ThresholdFilter(BaseFilter):
    """Hard if the mean confidence of the boxes is below ``threshold``."""

    def __init__(self, threshold: float = 0.5, **kwargs: Any) -> None:
        self.threshold = float(threshold)

    def __call__(self, infer_result: Sequence[Sequence[float]] | None = None) -> bool:
        if not infer_result or any(len(box) <= SCORE for box in infer_result):
            return False
        return sum(box[SCORE] for box in infer_result) / len(infer_result) < self.threshold


@ClassFactory.register(ClassType.HEM, alias="CrossEntropy")
class CrossEntropyFilter(BaseFilter):
    """Hard if one minus the normalised entropy of the class probabilities is below ``threshold_cross_entropy``."""

    def __init__(self, threshold_cross_entropy: float = 0.5, **kwargs: Any) -> None:
        self.threshold_cross_entropy = float(threshold_cross_entropy)

    def __call__(self, infer_result: Sequence[float] | None = None) -> bool:
        if not infer_result or len(infer_result) < 2 or not all(0 <= float(p) <= 1 for p in infer_result):
            return False
        negative_entropy = sum(p * math.log(p) for p in infer_result if p > 0)
        return 1 + negative_entropy / math.log(len(infer_result)) < self.threshold_cross_entropy


@ClassFactory.register(ClassType.HEM, alias="IBT")
class IBTFilter(BaseFilter):
    """Hard if at least ``1 - threshold_img`` of the boxes have a confidence of at most ``threshold_box``."""

    def __init__(self, threshold_img: float = 0.5, threshold_box: float = 0.5, **kwargs: Any) -> None:
        self.threshold_img = float(threshold_img)
        self.threshold_box = float(threshold_box)

    def __call__(self, infer_result: Sequence[Sequence[float]] | None = None) -> bool:
        if not infer_result or any(len(box) <= SCORE or not 0 <= float(box[SCORE]) <= 1 for box in infer_result):
            return False
        weak = sum(float(box[SCORE]) <= self.threshold_box for box in infer_result)
        return weak / len(infer_result) >= 1 - self.threshold_img


@ClassFactory.register(ClassType.HEM, alias="Random")
class RandomFilter(BaseFilter):
    """Hard with probability ``random_ratio``; seeded, so that a run can be repeated."""

    def __init__(self, random_ratio: float = 0.3, seed: int = 0, **kwargs: Any) -> None:
        self.random_ratio = float(random_ratio)
        self.random = random.Random(seed)

    def __call__(self, infer_result: Any = None) -> bool:
        return self.random.random() < self.random_ratio
