"""config.json for a GGUF file. Unknown metadata are errors, since they could change the output.

Defaults are those of llama.cpp (https://github.com/ggml-org/llama.cpp, src/models/).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.models.families import FAMILIES, FULL, SLIDING
from ianvs_specdec.models.gguf.architecture import (
    ARCHITECTURES,
    GRANITE,
    LARGEST_GEMMA,
    NORMALIZED,
    PATTERN,
    ROPE_FACTORS,
    ROPE_LONG,
    ROPE_SHORT,
    WHOLE_STEP,
    llama3_factors,
)

SIZES = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
}
SAME_WIDTH = ("attention.value_length", "rope.dimension_count")
"""Keys that must equal the width of a head."""
WITHOUT_EFFECT = ("tensor_data_layout", "rope.scaling.finetuned")
BIASES = {"attention_bias": "blk.0.attn_q.bias", "mlp_bias": "blk.0.ffn_gate.bias"}
GEMMA2_CAPS = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}

ORIGINAL_WINDOWS = (8192, *(2**power for power in range(5, 20)))
"""Candidates of original_max_position_embeddings; that of all published models first."""
Factors = Mapping[str, np.ndarray[Any, Any]]


def cannot(what: str) -> UserError:
    """The error for a part of a file that cannot be imported."""
    return UserError(f"{what} cannot be imported: use backend llamacpp, which runs the file as it is")


class Metadata:
    """The metadata of an architecture. ``take`` raises UserError for a missing key, ``end`` for unread ones."""

    def __init__(self, name: str, stated: Mapping[str, Any]) -> None:
        self._name = name
        self._left = {
            key.removeprefix(f"{name}."): value for key, value in stated.items() if key.startswith(f"{name}.")
        }

    def take(self, key: str) -> Any:
        if key not in self._left:
            raise UserError(f"{self._name}.{key} is missing: download the file again")
        return self.optional(key)

    def optional(self, key: str, default: Any = None) -> Any:
        value = self._left.pop(key, default)
        return _shortest(np.array([value]))[0] if isinstance(value, float) else value

    def refuse(self, key: str, value: Any) -> UserError:
        return cannot(f"its {self._name}.{key} ({value!r:.40})")

    def end(self) -> None:
        for key, value in self._left.items():
            raise self.refuse(key, value)


def configuration(
    stated: Mapping[str, Any], tensors: Collection[str], factors: Factors = MappingProxyType({})
) -> dict[str, Any]:
    """config.json from all metadata of a file, the names of its tensors, and the tensors of rotary ``factors``. Raises
    UserError for unsupported metadata."""
    name = stated.get("general.architecture")
    # Several families may share an architecture in GGUF, such as Llama and Mistral: the first counts.
    families = {architecture: family for family, architecture in reversed(ARCHITECTURES.items())}
    if name not in families:
        raise cannot(f"its general.architecture {name} (the import knows {', '.join(sorted(families))})")
    family, metadata = families[name], Metadata(name, stated)
    experts = metadata.optional("expert_count") or 0
    if experts and family == "llama":
        family = "mixtral"
    config = {key: metadata.take(place) for place, key in SIZES.items()}
    for place, key in SIZES.items():
        if not isinstance(config[key], int) or config[key] < 1:
            raise metadata.refuse(place, config[key])
    heads = config["num_attention_heads"]
    config |= {
        "model_type": family,
        "num_key_value_heads": metadata.optional("attention.head_count_kv", heads),
        "rms_norm_eps": metadata.take("attention.layer_norm_rms_epsilon"),
        "head_dim": metadata.optional("attention.key_length", config["hidden_size"] // heads),
        "vocab_size": len(stated["tokenizer.ggml.tokens"]),
        "tie_word_embeddings": "output.weight" not in tensors,
        **{key: BIASES[key] in tensors for key in sorted(FAMILIES[family].biased)},
    }
    config["rope_parameters"] = _position(metadata, config, factors)
    if experts or FAMILIES[family].experts:
        _experts(metadata, config, experts)
    if family in _FEATURES:
        _FEATURES[family](metadata, config)
    for key in (*SAME_WIDTH, "vocab_size"):
        wanted = config.get(key, config["head_dim"])
        if (value := metadata.optional(key, wanted)) != wanted:
            raise metadata.refuse(key, value)
    for key in WITHOUT_EFFECT:
        metadata.optional(key)
    metadata.end()
    return config


def _experts(metadata: Metadata, config: dict[str, Any], count: int) -> None:
    family = FAMILIES[config["model_type"]]
    if family.experts is None or not 0 < (used := metadata.take("expert_used_count")) <= count:
        raise metadata.refuse("expert_count", count)
    config |= {family.experts: count, "num_experts_per_tok": used}
    width = metadata.optional("expert_feed_forward_length")
    if "moe_intermediate_size" in family.keys:
        config["moe_intermediate_size"] = width or config["intermediate_size"] // used
    elif width not in (None, config["intermediate_size"]):
        raise metadata.refuse("expert_feed_forward_length", width)
    if (normalized := NORMALIZED.get(config["model_type"])) is not None:
        config["norm_topk_prob"] = normalized


def _position(metadata: Metadata, config: dict[str, Any], factors: Factors) -> dict[str, Any]:
    rope: dict[str, Any] = {"rope_theta": metadata.optional("rope.freq_base", 10000.0)}
    factor = metadata.optional("rope.scaling.factor")
    kind = metadata.optional("rope.scaling.type", "linear" if factor else "none")
    original = metadata.optional("rope.scaling.original_context_length")
    if kind == "none" and ROPE_FACTORS in factors:
        return _llama3(rope, config["head_dim"], factors[ROPE_FACTORS])
    if kind in ("none", "longrope") and {ROPE_LONG, ROPE_SHORT} <= factors.keys():
        return rope | {
            "rope_type": "longrope",
            "original_max_position_embeddings": original or config["max_position_embeddings"],
            "attention_factor": metadata.optional("rope.scaling.attn_factor", 1.0),
            "long_factor": _shortest(factors[ROPE_LONG]),
            "short_factor": _shortest(factors[ROPE_SHORT]),
        }
    if kind == "none":
        return rope | {"rope_type": "default"}
    if kind not in ("linear", "yarn") or not factor:
        raise cannot(f"its scaling of positions (rope.scaling.type {kind})")
    rope |= {"rope_type": kind, "factor": factor}
    if kind == "linear":
        # config.json has the window before the extension, except for Gemma 3.
        if not FAMILIES[config["model_type"]].local:
            config["max_position_embeddings"] = int(config["max_position_embeddings"] / factor)
        return rope
    return rope | {
        "original_max_position_embeddings": original or config["max_position_embeddings"],
        "beta_fast": metadata.optional("rope.scaling.yarn_beta_fast", 32.0),
        "beta_slow": metadata.optional("rope.scaling.yarn_beta_slow", 1.0),
    }


def _shortest(values: np.ndarray[Any, Any]) -> list[float]:
    """The shortest decimal numbers with the same float32 values, usually the original ones."""
    return [float(str(value)) for value in values.astype(np.float32)]


def _llama3(rope: Mapping[str, Any], head_dim: int, factors: np.ndarray[Any, Any]) -> dict[str, Any]:
    """The parameters of Llama 3's scaling that yield ``factors``; a file has only these."""
    for original in ORIGINAL_WINDOWS:
        tried = {**rope, "rope_type": "llama3", "factor": float(factors.max(initial=1.0))}
        tried |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": original}
        expected = llama3_factors(tried, head_dim)
        # llama.cpp computes in float32.
        if factors.shape == expected.shape and np.allclose(factors, expected, rtol=1e-6, atol=0.0):
            return tried
    raise cannot(f"its scaling of positions by a tensor other than Llama 3's ({ROPE_FACTORS})")


def _smollm3(metadata: Metadata, config: dict[str, Any]) -> None:
    layers = range(config["num_hidden_layers"])
    config["no_rope_layers"] = [int((index + 1) % WHOLE_STEP != 0) for index in layers]


def _granite(metadata: Metadata, config: dict[str, Any]) -> None:
    config |= {key: metadata.take(name) for name, key in GRANITE.items()}
    # In this architecture llama.cpp disables positions if it is False.
    if not metadata.optional("rope.scaling.finetuned", True):
        raise metadata.refuse("rope.scaling.finetuned", False)


def _phi3(metadata: Metadata, config: dict[str, Any]) -> None:
    width = config["head_dim"]
    turned = metadata.optional("rope.dimension_count", width)
    partial = turned / width
    if int(width * partial) != turned:
        raise metadata.refuse("rope.dimension_count", turned)
    rope = config["rope_parameters"]
    if any(len(rope.get(key, ())) not in (0, turned // 2) for key in ("long_factor", "short_factor")):
        raise cannot(f"its {ROPE_LONG} of another length")
    rope["partial_rotary_factor"] = partial
    config["sliding_window"] = metadata.optional("attention.sliding_window") or None


def _gemma(metadata: Metadata, config: dict[str, Any]) -> None:
    family, layers = config["model_type"], config["num_hidden_layers"]
    pattern = metadata.optional("attention.sliding_window_pattern", PATTERN[family])
    if not isinstance(pattern, list):
        pattern = [(index + 1) % pattern != 0 for index in range(layers)]
    largest = layers == LARGEST_GEMMA[family]
    config |= {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": (
            config["hidden_size"] // config["num_attention_heads"] if largest else config["head_dim"]
        ),
        "sliding_window": metadata.take("attention.sliding_window"),
        "layer_types": [SLIDING if slides else FULL for slides in pattern],
    }
    if family == "gemma2":
        config |= {key: metadata.optional(key, cap) for key, cap in GEMMA2_CAPS.items()}
        return
    config["final_logit_softcapping"] = metadata.optional("final_logit_softcapping")
    sliding = {"rope_type": "default", "rope_theta": metadata.optional("rope.freq_base_swa", 10000.0)}
    config["rope_parameters"] = {FULL: config["rope_parameters"], SLIDING: sliding}


_FEATURES: dict[str, Callable[[Metadata, dict[str, Any]], None]] = {
    "smollm3": _smollm3,
    "granite": _granite,
    "phi3": _phi3,
    "gemma2": _gemma,
    "gemma3_text": _gemma,
}
