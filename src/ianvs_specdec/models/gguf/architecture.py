"""What GGUF calls the parts of a model: metadata, tensor names and the order of rows, for the Llama and Qwen families.

Sources: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (keys and tensor names); the frequencies of Llama 3's
position scaling are those of Llama 3.1's reference code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ianvs_specdec.common.errors import UserError, unknown
from ianvs_specdec.models.rotary import window_of

FAMILIES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
"""``model_type`` in config.json -> architecture in GGUF."""

NEEDED = (
    *("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output"),
    *("ffn_norm", "ffn_gate", "ffn_up", "ffn_down"),
)
"""GGUF's names of the matrices that each layer must have."""
IGNORED = "rotary_emb.inv_freq"
ROPE_FACTORS = "rope_freqs.weight"


@dataclass
class Architecture:
    """``metadata`` maps GGUF keys (without the architecture) to integers, floats and texts; ``tensors`` maps each GGUF
    name to the name in the folder. ``rope_factors`` divide the rotary frequencies; None where all are 1.
    """

    name: str
    layers: int
    heads: int
    key_heads: int
    head_dim: int
    metadata: dict[str, int | float | str]
    tensors: dict[str, str] = field(default_factory=dict)
    rope_factors: np.ndarray[Any, Any] | None = None

    def row_order(self, tensor: str) -> np.ndarray[Any, Any] | None:
        """The order in which the rows of a tensor (its GGUF name) are written; None as they are.

        Hugging Face rotates the first half of a head's dimensions with the second, GGUF's architecture ``llama`` each
        even dimension with the odd one after it.
        """
        if self.name != "llama" or not tensor.rpartition(".")[0].endswith(("attn_q", "attn_k")):
            return None
        heads = self.heads if ".attn_q." in tensor else self.key_heads
        rows = np.arange(heads * self.head_dim).reshape(heads, 2, self.head_dim // 2)
        return rows.swapaxes(1, 2).reshape(-1)


def architecture(config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> Architecture:
    """From config.json and the shapes of the weights. Raises UserError for what GGUF, or this export, has no place
    for.
    """
    family = config.get("model_type")
    if family not in FAMILIES:
        raise unknown("model_type to export in config.json", family, FAMILIES)
    if config.get("hidden_act", "silu") != "silu":
        raise UserError(f"config.json: hidden_act {config['hidden_act']!r} cannot be exported, only silu")
    try:
        layers, heads, hidden = (
            int(config[key]) for key in ("num_hidden_layers", "num_attention_heads", "hidden_size")
        )
        # A layer with sliding-window attention is the same as one without in a context no longer than the window.
        sliding = config.get("sliding_window") if config.get("use_sliding_window", family == "mistral") else None
        window = window_of(config) or int(config["max_position_embeddings"])
        context = min(window, int(sliding or window))
        key_heads = int(config.get("num_key_value_heads") or heads)
        head_dim = int(config.get("head_dim") or hidden // heads)
        metadata: dict[str, int | float | str] = {
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
        }
    except KeyError as error:
        raise UserError(f"the model lacks {error}: it is not a complete model of the {family} family") from error
    made = Architecture(FAMILIES[family], layers, heads, key_heads, head_dim, metadata)
    _position(made, config)
    _name_tensors(made, shapes)
    return made


def _position(made: Architecture, config: Mapping[str, Any]) -> None:
    """Rotary positions: ``rope_parameters`` as transformers writes them now, ``rope_theta`` and ``rope_scaling`` as it
    did before.
    """
    rope = {"rope_theta": config.get("rope_theta", 10000.0), **(config.get("rope_scaling") or {})}
    rope |= config.get("rope_parameters") or {}
    made.metadata["rope.freq_base"] = float(rope["rope_theta"])
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise UserError("config.json: partial_rotary_factor cannot be exported")
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "llama3":
        made.rope_factors = _llama3_factors(rope, made.head_dim)
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
        raise unknown("position scaling to export in config.json", kind, ("default", "linear", "yarn", "llama3"))


def _llama3_factors(rope: Mapping[str, Any], head_dim: int) -> np.ndarray[Any, Any]:
    """One factor for each of ``head_dim / 2`` frequencies: 1 for short waves, ``factor`` for long ones, and in between
    their frequencies mixed.
    """
    factor, low, high = (float(rope[key]) for key in ("factor", "low_freq_factor", "high_freq_factor"))
    original = float(rope["original_max_position_embeddings"])
    wavelengths = 2 * math.pi * float(rope["rope_theta"]) ** (np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    smooth = np.clip((original / wavelengths - low) / (high - low), 0.0, 1.0)
    return np.asarray(1.0 / (smooth + (1.0 - smooth) / factor), dtype=np.float32)


def _name_tensors(made: Architecture, shapes: Mapping[str, tuple[int, ...]]) -> None:
    import gguf

    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[made.name.upper()], made.layers)
    for name in shapes:
        # An output matrix that is there counts, whatever tie_word_embeddings says: so transformers has it.
        if name.endswith(IGNORED):
            continue
        if (place := names.get_name(name, try_suffixes=(".weight", ".bias"))) is None:
            raise UserError(
                f"the weights hold {name}, which has no place in a {made.name} model: it cannot be exported"
            )
        made.tensors[place] = name
    expected = {f"blk.{layer}.{part}.weight" for layer in range(made.layers) for part in NEEDED}
    expected |= {"token_embd.weight", "output_norm.weight"}
    if missing := sorted(expected - made.tensors.keys()):
        raise UserError(f"the weights lack {len(missing)} tensors, {missing[0]} (GGUF's name) among them")
