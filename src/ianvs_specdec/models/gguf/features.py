"""GGUF metadata of the features in which families differ from Llama. Features that llama.cpp would ignore are errors.

Source: https://github.com/ggml-org/llama.cpp, src/models/ (one file for each architecture) and conversion/.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.models.families import FAMILIES, SLIDING, WITHOUT_EFFECT
from ianvs_specdec.models.rotary import rotary

Metadata = dict[str, Any]

OLDER = frozenset(("rope_theta", "rope_scaling", "rope_local_base_freq", "partial_rotary_factor"))
"""Keys of rotary positions in transformers 4."""
ROPE_LONG, ROPE_SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
WHOLE_STEP = 4
"""Every fourth layer has no rotary positions in llama.cpp's SmolLM3."""
LARGEST_GEMMA = {"gemma2": 46, "gemma3_text": 62}
"""Number of layers of the models whose attention llama.cpp scales by hidden size / heads."""
GRANITE = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}
PATTERN = {"gemma2": 2, "gemma3_text": 6}
"""Default distance of layers with full attention."""

NORMALIZED = {"qwen3_moe": True, "olmoe": False}
"""Whether llama.cpp normalizes the weights of the chosen experts, in families where it is configurable."""


def check_keys(config: Mapping[str, Any], family: str) -> None:
    """Raise UserError for an unsupported key that could change the output."""
    for key in FAMILIES[family].unknown(config, known=WITHOUT_EFFECT | OLDER):
        raise UserError(f"config.json: {key} ({config[key]!r:.40}) of the family {family} cannot be exported")


def features(config: Mapping[str, Any], family: str, head_dim: int) -> Metadata:
    return _FEATURES[family](config, head_dim) if family in _FEATURES else {}


def _smollm3(config: Mapping[str, Any], head_dim: int) -> Metadata:
    layers, step = int(config["num_hidden_layers"]), config.get("no_rope_layer_interval") or WHOLE_STEP
    rotated = config.get("no_rope_layers") or [int((index + 1) % step != 0) for index in range(layers)]
    if [bool(turns) for turns in rotated[:layers]] != [(index + 1) % WHOLE_STEP != 0 for index in range(layers)]:
        raise UserError(f"config.json: no_rope_layers other than each {WHOLE_STEP}th cannot be exported")
    return {}


def _granite(config: Mapping[str, Any], head_dim: int) -> Metadata:
    return {name: float(config.get(key, 1.0)) for name, key in GRANITE.items()}


def _phi3(config: Mapping[str, Any], head_dim: int) -> Metadata:
    partial = rotary(config).get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0
    return {"rope.dimension_count": int(head_dim * partial)}


def _gemma(config: Mapping[str, Any], head_dim: int) -> Metadata:
    family, layers = str(config["model_type"]), int(config["num_hidden_layers"])
    width, hidden = head_dim, int(config["hidden_size"])
    if layers == LARGEST_GEMMA[family]:
        width = hidden // int(config["num_attention_heads"])
    if (stated := config.get("query_pre_attn_scalar", 256)) != width:
        raise UserError(f"config.json: query_pre_attn_scalar {stated} cannot be exported, only {width}")
    if config.get("use_bidirectional_attention"):
        raise UserError("config.json: use_bidirectional_attention cannot be exported")
    step = config.get("sliding_window_pattern") or PATTERN[family]
    kinds = config.get("layer_types") or [SLIDING if (index + 1) % step else "" for index in range(layers)]
    found: Metadata = {
        "attention.sliding_window": int(config["sliding_window"]),
        "attention.sliding_window_pattern": [kind == SLIDING for kind in kinds],
    }
    caps = {"final_logit_softcapping": config.get("final_logit_softcapping")}
    if family == "gemma2":
        caps["attn_logit_softcapping"] = config.get("attn_logit_softcapping")
    elif config.get("attn_logit_softcapping") is not None:
        raise UserError("config.json: attn_logit_softcapping of Gemma 3 cannot be exported")
    # For Gemma 2, llama.cpp has default caps.
    if family == "gemma2" and (missing := [key for key, cap in caps.items() if cap is None]):
        raise UserError(f"config.json: a model without {missing[0]} cannot be exported")
    return found | {key: float(cap) for key, cap in caps.items() if cap is not None}


def _experts(config: Mapping[str, Any], head_dim: int) -> Metadata:
    stated = bool(config.get("norm_topk_prob"))
    if stated != NORMALIZED.get(config["model_type"], stated):
        raise UserError(f"config.json: norm_topk_prob {stated} of this family cannot be exported, only {not stated}")
    # transformers accepts both keys.
    count = config.get("num_experts") or config["num_local_experts"]
    found = {"expert_count": int(count), "expert_used_count": int(config["num_experts_per_tok"])}
    if (width := config.get("moe_intermediate_size")) is not None:
        found["expert_feed_forward_length"] = int(width)
    return found


_FEATURES: dict[str, Callable[[Mapping[str, Any], int], Metadata]] = {
    "smollm3": _smollm3,
    "granite": _granite,
    "phi3": _phi3,
    "gemma2": _gemma,
    "gemma3_text": _gemma,
    **dict.fromkeys(("mixtral", "qwen3_moe", "olmoe"), _experts),
}


def local_rope(config: Mapping[str, Any]) -> tuple[dict[str, Any], Metadata]:
    """Gemma 3's rotary positions: a configuration for layers with full attention, and metadata for sliding layers."""
    given = config.get("rope_parameters") or {}
    whole = given.get("full_attention") or {"rope_theta": config.get("rope_theta", 1e6), **rotary(config)}
    sliding = given.get(SLIDING) or {"rope_theta": config.get("rope_local_base_freq", 1e4)}
    if rotary({"rope_parameters": sliding})["rope_type"] != "default":
        raise UserError("config.json: position scaling of sliding layers cannot be exported")
    return {"rope_parameters": whole}, {"rope.freq_base_swa": float(sliding.get("rope_theta", 1e4))}


def longrope(config: Mapping[str, Any], rope: Mapping[str, Any]) -> tuple[Metadata, dict[str, np.ndarray[Any, Any]]]:
    """Metadata and tensors of LongRoPE (Ding et al. 2024, arXiv 2402.13753).

    transformers switches factors when a sequence exceeds the original window, llama.cpp when a context is created. So
    the file has the original window; users can request a longer one.
    """
    original = int(rope.get("original_max_position_embeddings") or config["original_max_position_embeddings"])
    factor = int(config["max_position_embeddings"]) / original
    scale = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    metadata = {
        "context_length": original,
        "rope.scaling.original_context_length": original,
        "rope.scaling.attn_factor": float(rope.get("attention_factor") or scale),
    }
    names = {ROPE_LONG: "long_factor", ROPE_SHORT: "short_factor"}
    return metadata, {name: np.asarray(rope[key], dtype=np.float32) for name, key in names.items()}
