"""The right target for a model."""

from __future__ import annotations

from typing import Any

from ianvs_specdec.decoding.contracts import Target
from ianvs_specdec.decoding.fused import FusedTarget, fits
from ianvs_specdec.decoding.target import HuggingFaceTarget


def target_of(model: Any) -> Target:
    """The fastest target that can run ``model``, a loaded ``transformers`` causal LM."""
    return FusedTarget(model) if fits(model) else HuggingFaceTarget(model)
