"""Metadata, tensor names and row orders of a model in GGUF. Features that llama.cpp would ignore are errors.

Sources: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (keys and tensor names); llama.cpp's src/models/ and
conversion/ (features of families); Llama 3.1's reference code (frequencies of Llama 3's position scaling).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ianvs_specdec.common.errors import UserError, unknown
from ianvs_specdec.models import families
from ianvs_specdec.models.families import FAMILIES, SLIDING, WITHOUT_EFFECT
from ianvs_specdec.models.rotary import rotary, window_of

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


ARCHITECTURES = {
    **{family: family for family in ("llama", "qwen2", "qwen3", "smollm3", "phi3", "granite", "olmo2", "gemma2")},
    "mistral": "llama",
    "mixtral": "llama",
    "gemma3_text": "gemma3",
    "qwen3_moe": "qwen3moe",
    "olmoe": "olmoe",
}
"""``model_type`` in config.json -> architecture in GGUF."""
ALTERNATING = ("llama", "smollm3", "granite")
"""Architectures that rotate each even dimension with the next odd one."""
SLIDING_BY_DEFAULT = ("mistral", "mixtral", "phi3")
SCALED_BY_TENSOR = ("llama", "granite")
"""Architectures whose frequencies llama.cpp divides by a tensor of factors."""
EXPERT = re.compile(r"\.experts\.(\d+)")

_NORMS = {"input_norm": "attn_norm", "output_norm": "post_attention_norm", "down_norm": "post_ffw_norm"}
IGNORED = "rotary_emb.inv_freq"
ROPE_FACTORS = "rope_freqs.weight"


@dataclass
class Architecture:
    """A model in GGUF. ``metadata``: GGUF keys (without the architecture) -> integers, floats, strings, lists.
    ``tensors``: GGUF name -> name in the folder, or names of all experts in order. ``factors``: further tensors, which
    divide the rotary frequencies. ``norm_offset``: added to the weights of norms."""

    name: str
    layers: int
    heads: int
    key_heads: int
    head_dim: int
    metadata: dict[str, Any]
    norm_offset: float = 0.0
    tensors: dict[str, list[str]] = field(default_factory=dict)
    factors: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)

    def shape(self, tensor: str, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
        """Shape of a tensor (GGUF name) with stacked experts, from the shapes in the folder."""
        names = self.tensors[tensor]
        return (len(names), *shapes[names[0]]) if EXPERT.search(names[0]) else shapes[names[0]]

    def row_order(self, tensor: str) -> np.ndarray[Any, Any] | None:
        """Permutation of the rows of a tensor (GGUF name), None without one. Hugging Face rotates the first half of a
        head's dimensions with the second."""
        if self.name not in ALTERNATING or not tensor.rpartition(".")[0].endswith(("attn_q", "attn_k")):
            return None
        heads = self.heads if ".attn_q." in tensor else self.key_heads
        rows = np.arange(heads * self.head_dim).reshape(heads, 2, self.head_dim // 2)
        return rows.swapaxes(1, 2).reshape(-1)

    def offset(self, tensor: str) -> float:
        """Constant that is added to a tensor (GGUF name)."""
        return self.norm_offset if tensor.endswith("norm.weight") else 0.0


def architecture(config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> Architecture:
    """The architecture for a config.json and the shapes of the weights. Raises UserError for unsupported features."""
    family = config.get("model_type")
    if family not in ARCHITECTURES:
        raise unknown("model_type to export in config.json", family, ARCHITECTURES)
    described = families.FAMILIES[family]
    check_keys(config, family)
    wanted = "silu" if described.activation == "hidden_act" else "gelu_pytorch_tanh"
    if (stated := config.get(described.activation, wanted)) != wanted:
        raise UserError(f"config.json: {described.activation} {stated!r} cannot be exported, only {wanted}")
    try:
        layers, heads, hidden = (
            int(config[key]) for key in ("num_hidden_layers", "num_attention_heads", "hidden_size")
        )
        # In a context within the window, sliding-window attention is full attention.
        slides = config.get("use_sliding_window", family in SLIDING_BY_DEFAULT)
        sliding = config.get("sliding_window") if slides else None
        window = window_of(config) or int(config["max_position_embeddings"])
        context = min(window, int(sliding or window))
        key_heads = int(config.get("num_key_value_heads") or heads)
        head_dim = int(config.get("head_dim") or described.head_dim or hidden // heads)
        metadata: dict[str, Any] = {
            "context_length": context,
            "embedding_length": hidden,
            "block_count": layers,
            "feed_forward_length": int(config["intermediate_size"]),
            "attention.head_count": heads,
            "attention.head_count_kv": key_heads,
            "attention.key_length": head_dim,
            "attention.value_length": head_dim,
            "attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
            "rope.dimension_count": head_dim,
            "vocab_size": shapes["model.embed_tokens.weight"][0],
            **features(config, family, head_dim),
        }
        made = Architecture(ARCHITECTURES[family], layers, heads, key_heads, head_dim, metadata, described.norm_offset)
        _position(made, config, described)
    except KeyError as error:
        raise UserError(f"{error} is missing: this is not a complete model of the {family} family") from error
    _name_tensors(made, shapes, described)
    return made


def _position(made: Architecture, config: Mapping[str, Any], family: families.Family) -> None:
    """Rotary positions, from ``rope_parameters``, or ``rope_theta`` and ``rope_scaling`` of transformers 4."""
    if family.local:
        config, own = local_rope(config)
        made.metadata |= own
    rope = {"rope_theta": config.get("rope_theta", 10000.0), **(config.get("rope_scaling") or {})}
    rope |= config.get("rope_parameters") or {}
    made.metadata["rope.freq_base"] = float(rope["rope_theta"])
    if not family.partial and rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise UserError("config.json: partial_rotary_factor cannot be exported")
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "llama3" and made.name in SCALED_BY_TENSOR:
        made.factors[ROPE_FACTORS] = llama3_factors(rope, made.head_dim)
    elif kind == "longrope" and family.partial:
        own, made.factors = longrope(config, rope)
        made.metadata |= own | {"context_length": min(made.metadata["context_length"], own["context_length"])}
    elif kind in ("linear", "yarn"):
        made.metadata |= {"rope.scaling.type": kind, "rope.scaling.factor": float(rope["factor"])}
        if kind == "yarn":
            if odd := [key for key in ("mscale", "mscale_all_dim", "attention_factor") if rope.get(key) is not None]:
                raise UserError(f"config.json: {odd[0]} of the position scaling yarn cannot be exported")
            original = rope.get("original_max_position_embeddings") or config["max_position_embeddings"]
            made.metadata["rope.scaling.original_context_length"] = int(original)
            made.metadata["rope.scaling.yarn_beta_fast"] = float(rope.get("beta_fast") or 32.0)
            made.metadata["rope.scaling.yarn_beta_slow"] = float(rope.get("beta_slow") or 1.0)
    elif kind != "default":
        known = ("default", "linear", "yarn", *(["llama3"] if made.name in SCALED_BY_TENSOR else []))
        raise unknown(f"position scaling to export of {made.name} in config.json", kind, known)


def llama3_factors(rope: Mapping[str, Any], head_dim: int) -> np.ndarray[Any, Any]:
    """Divisors of the ``head_dim / 2`` frequencies: 1 for short wavelengths, ``factor`` for long ones, interpolated in
    between."""
    factor, low, high = (float(rope[key]) for key in ("factor", "low_freq_factor", "high_freq_factor"))
    original = float(rope["original_max_position_embeddings"])
    wavelengths = 2 * math.pi * float(rope["rope_theta"]) ** (np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    smooth = np.clip((original / wavelengths - low) / (high - low), 0.0, 1.0)
    return np.asarray(1.0 / (smooth + (1.0 - smooth) / factor), dtype=np.float32)


def _needed(family: families.Family) -> list[str]:
    norms = [_NORMS.get(name, "ffn_norm") for name in family.norms]
    attention = ["attn_qkv"] if family.fused else ["attn_q", "attn_k", "attn_v"]
    mlp = ["ffn_up", "ffn_down"] if family.fused else ["ffn_gate", "ffn_up", "ffn_down"]
    if family.experts:
        mlp = ["ffn_gate_inp", *(f"{part}_exps" for part in mlp)]
    return [*norms, *attention, "attn_output", *mlp]


def _name_tensors(made: Architecture, shapes: Mapping[str, tuple[int, ...]], family: families.Family) -> None:
    import gguf

    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[made.name.upper()], made.layers)
    for name in sorted(shapes, key=_expert):
        # As in transformers, an output matrix in the file is used whatever tie_word_embeddings says.
        if name.endswith(IGNORED):
            continue
        place = names.get_name(EXPERT.sub(".experts", name), try_suffixes=(".weight", ".bias"))
        if place is None:
            raise UserError(f"the weights hold {name}, which a {made.name} model does not have: it cannot be exported")
        made.tensors.setdefault(place, []).append(name)
    expected = {f"blk.{layer}.{part}.weight" for layer in range(made.layers) for part in _needed(family)}
    expected |= {"token_embd.weight", "output_norm.weight"}
    if missing := sorted(expected - made.tensors.keys()):
        raise UserError(f"the weights lack {len(missing)} tensors, such as {missing[0]} (GGUF's name)")
    for listed in made.tensors.values():
        wanted = made.metadata["expert_count"] if EXPERT.search(listed[0]) else 1
        if [_expert(name) for name in listed] != [*range(wanted)] or len({shapes[name] for name in listed}) > 1:
            raise UserError(f"the experts of {listed[0]} are {len(listed)} tensors, expected {wanted} of one shape")


def _expert(name: str) -> int:
    found = EXPERT.search(name)
    return int(found[1]) if found else 0
