"""The right target for a model."""

from __future__ import annotations

from typing import Any

from ianvs_specdec.decoding.contracts import Target
from ianvs_specdec.decoding.fused import FusedTarget, fits
from ianvs_specdec.decoding.int8 import Int8Linear, quantize
from ianvs_specdec.decoding.linear import Linear
from ianvs_specdec.decoding.target import HuggingFaceTarget


def target_of(model: Any, *, consume: bool = False, int8: bool = False) -> Target:
    """The fastest target that can run ``model``, a loaded ``transformers`` causal LM.

    With ``consume`` the target may take the model's weights away from it, so that none is held twice. With ``int8`` the
    products are computed in 8-bit integers (see ``int8``); a model that is not fused is changed in place.
    """
    if fits(model):
        return FusedTarget(model, consume=consume, product=Int8Linear if int8 else Linear)
    if int8:
        quantize(model)
    return HuggingFaceTarget(model)
