"""The right target for a model."""

from __future__ import annotations

from typing import Any

from ianvs_specdec.decoding.contracts import Target
from ianvs_specdec.decoding.fused import FusedTarget, fits
from ianvs_specdec.decoding.target import HuggingFaceTarget


def target_of(model: Any, *, consume: bool = False) -> Target:
    """The fastest target that can run ``model``, a loaded ``transformers`` causal LM.

    With ``consume`` the target may take the model's weights away from it, so that none is held twice.
    """
    return FusedTarget(model, consume=consume) if fits(model) else HuggingFaceTarget(model)
