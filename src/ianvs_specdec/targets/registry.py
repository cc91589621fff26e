"""The right target for a model."""

from __future__ import annotations

import logging
from typing import Any, Literal

from ianvs_specdec.common.errors import UserError, unknown
from ianvs_specdec.common.types import ENGINES
from ianvs_specdec.engine.contracts import Target
from ianvs_specdec.models.families import FAMILIES
from ianvs_specdec.targets import int4, int8
from ianvs_specdec.targets.fused import FusedTarget, Product, fits
from ianvs_specdec.targets.huggingface import HuggingFaceTarget
from ianvs_specdec.targets.linear import Linear
from ianvs_specdec.targets.native import library
from ianvs_specdec.targets.native.target import NativeTarget, native_unsupported_reason

log = logging.getLogger(__name__)

Quantization = Literal["int8", "int4"]
_PRODUCTS: dict[Quantization | None, type[Product]] = {
    None: Linear,
    "int8": int8.Int8Linear,
    "int4": int4.Int4Linear,
}


def create_target(
    model: Any, *, consume: bool = False, quantization: Quantization | None = None, engine: str = "auto"
) -> Target:
    """The target that runs ``model``, a loaded ``transformers`` causal LM, on ``engine``, one of ``ENGINES``.

    With ``consume`` the target may take the model's weights away from it, so that none is held twice. ``quantization``
    "int8" and "int4" round the weights of the products; a model that transformers computes is changed in place.

    Raises ``UserError`` where the engine that is asked for cannot compute this model.
    """
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES, key="engine")
    if engine in ("auto", "native"):
        reason = native_unavailable_reason(model)
        if reason is None:
            return NativeTarget(model, consume=consume, quantization=quantization)
        if engine == "native":
            raise UserError(f"engine native: {reason}; choose engine auto", key="engine")
        if model.device.type == "cpu" and (library.unavailable_reason() or model.config.model_type in FAMILIES):
            other = "torch" if engine == "auto" and fits(model) else "transformers"
            log.warning("engine %s: slower than the native step, which cannot run this model: %s", other, reason)
    if engine in ("auto", "torch") and fits(model):
        return FusedTarget(model, consume=consume, product=_PRODUCTS[quantization])
    if engine == "torch":
        raise UserError(
            "engine torch is for Llama, Mistral, Qwen2 and Qwen3 as transformers builds them, and this model is "
            "another; choose engine auto",
            key="engine",
        )
    quantize(model, quantization)
    return HuggingFaceTarget(model)


def native_unavailable_reason(model: Any) -> str | None:
    return library.unavailable_reason() or native_unsupported_reason(model)


def quantize(model: Any, quantization: Quantization | None) -> None:
    """Round the weights of a model that transformers computes, in place."""
    if quantization == "int8":
        int8.quantize(model)
    elif quantization == "int4":
        int4.quantize(model)
