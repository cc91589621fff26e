"""Metadata, tensor names and row orders of a model in GGUF.

Sources: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (keys and tensor names); Llama 3.1's reference code
(frequencies of Llama 3's position scaling).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ianvs_specdec.common.errors import UserError, unknown
from ianvs_specdec.models import families
from ianvs_specdec.models.gguf.features import check_keys, features, local_rope, longrope
from ianvs_specdec.models.rotary import window_of

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
