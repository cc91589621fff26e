"""Families of decoder-only models: a table of their differences from Llama.

A configuration key that is not in the table, and is not known to have no effect, is an error: ignoring it could change
the output.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from ianvs_specdec.common.errors import UserError, unknown
from ianvs_specdec.models.rotary import ROTATIONS, rotary, switch_length

PRE = {"input_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
POST = {"output_norm": "post_attention_layernorm", "down_norm": "post_feedforward_layernorm"}
SANDWICH = {
    "input_norm": "input_layernorm",
    "output_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "down_norm": "post_feedforward_layernorm",
}
"""Norms of a layer: name in the native step -> name in transformers."""

SLIDING, FULL = "sliding_attention", "full_attention"
ACTIVATIONS = ("silu", "gelu_pytorch_tanh")

SIZES = frozenset(
    (
        *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
        *("num_key_value_heads", "head_dim", "max_position_embeddings", "original_max_position_embeddings"),
        *("rms_norm_eps", "tie_word_embeddings", "attention_bias", "mlp_bias", "rope_parameters"),
    )
)
"""Keys that determine the shapes of weights, or that every family has."""
WITHOUT_EFFECT = frozenset(
    (
        *("model_type", "architectures", "auto_map", "dtype", "torch_dtype", "transformers_version"),
        *("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "sep_token_id", "cls_token_id"),
        *("tokenizer_class", "id2label", "label2id", "num_labels", "problem_type", "return_dict"),
        *("use_cache", "cache_implementation", "output_attentions", "output_hidden_states", "initializer_range"),
        *("attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop"),
        *("router_aux_loss_coef", "router_jitter_noise", "output_router_logits"),
        *("pretraining_tp", "is_llama_config", "transformers.js_config"),
        *("unsloth_fixed", "unsloth_version"),
    )
)
"""Keys that do not affect the output."""
NEUTRAL = {"full_attn_mod": 1, "interpolate_factor": 1}
"""Keys of published models -> the value without an effect."""
ROPE_KEYS = frozenset(
    (
        *("rope_type", "type", "rope_theta", "factor", "low_freq_factor", "high_freq_factor"),
        *("original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow", "mscale"),
        *("mscale_all_dim", "truncate", "short_factor", "long_factor"),
    )
)


@dataclass(frozen=True)
class Family:
    norms: Mapping[str, str] = field(default_factory=lambda: PRE)
    head_norms: str | None = None
    """Norms of queries and keys: "each" head, or the "whole" projection."""
    norm_offset: float = 0.0
    """Added to the weights of norms."""
    activation: str = "hidden_act"
    fused: bool = False
    """Queries, keys and values are one projection, gate and up another."""
    windows: str = "none"
    """Layers with a sliding window: "all", "none", or according to "layer_types"."""
    local: bool = False
    """Sliding layers have a separate rotary embedding."""
    partial: bool = False
    """Heads may be rotated partially."""
    rotated_key: str | None = None
    """Key with a 1 for each layer that has a rotary embedding."""
    factors: Mapping[str, str] = field(default_factory=dict)
    """Name in ``Description.factors`` -> key."""
    experts: str | None = None
    """Key of the number of experts."""
    biased: frozenset[str] = frozenset(("attention_bias", "mlp_bias"))
    """Keys that add a bias to projections."""
    qkv_bias: bool = False
    """Queries, keys and values always have a bias."""
    tied: bool = False
    """Default of tie_word_embeddings."""
    head_dim: int | None = None
    """Default of head_dim."""
    space_prefix: bool = True
    """SentencePiece tokenizers of the family prepend a space."""
    extra: frozenset[str] = frozenset()
    """Further keys that are read, or that affect the modules only."""

    @property
    def keys(self) -> frozenset[str]:
        windows = {"none": (), "all": ("sliding_window",), "layer_types": ("sliding_window", "layer_types")}
        named = {self.activation, self.rotated_key or "", self.experts or "", *self.factors.values()}
        partial = {"partial_rotary_factor"} if self.partial else set()
        return SIZES | WITHOUT_EFFECT | self.extra | named | partial | set(windows[self.windows])

    def unknown(
        self,
        config: Mapping[str, Any],
        *,
        known: Collection[str] = (),
        defaults: Mapping[str, Any] = MappingProxyType({}),
    ) -> list[str]:
        """Unsupported keys of a configuration that could affect the output: neither keys of the family nor ``known``,
        and with a value other than empty, neutral, or the default of the model's class."""
        found = []
        for key, value in config.items():
            empty: tuple[Any, ...] = (None, False, [], {}, NEUTRAL.get(key))
            neutral = any(type(value) is type(one) and value == one for one in empty)
            default = key in defaults and value == defaults[key]
            if not (key in self.keys or key in known or key.startswith("_") or neutral or default):
                found.append(key)
        return found


_WINDOW_KEYS = frozenset(("use_sliding_window", "max_window_layers"))
"""transformers derives sliding_window and layer_types from them."""
_EXPERT_KEYS = frozenset(("num_experts_per_tok", "num_local_experts", "num_experts"))
_NORMALIZE = frozenset(("norm_topk_prob",))
_SPARSE_KEYS = frozenset(("moe_intermediate_size", "mlp_only_layers", "decoder_sparse_step"))
"""Which layers have experts is read from the modules."""
_ATTENTION = frozenset(("attention_bias",))
_GEMMA2 = Family(
    norms=SANDWICH,
    norm_offset=1.0,
    activation="hidden_activation",
    windows="layer_types",
    biased=_ATTENTION,
    tied=True,
    head_dim=256,
    space_prefix=False,
    factors={
        "attention_scale": "query_pre_attn_scalar",
        "attention_cap": "attn_logit_softcapping",
        "logits_cap": "final_logit_softcapping",
    },
    extra=frozenset(("hidden_act", "sliding_window_pattern")),
)
_GEMMA3_FACTORS = {name: key for name, key in _GEMMA2.factors.items() if name != "attention_cap"}
"""transformers ignores the cap on attention of Gemma 3."""

FAMILIES: dict[str, Family] = {
    "llama": Family(),
    "mistral": Family(windows="all", biased=frozenset()),
    "qwen2": Family(windows="layer_types", biased=frozenset(), qkv_bias=True, extra=_WINDOW_KEYS),
    "qwen3": Family(head_norms="each", windows="layer_types", biased=_ATTENTION, head_dim=128, extra=_WINDOW_KEYS),
    "smollm3": Family(
        windows="layer_types",
        rotated_key="no_rope_layers",
        tied=True,
        extra=_WINDOW_KEYS | {"no_rope_layer_interval"},
    ),
    "phi3": Family(fused=True, windows="all", partial=True, biased=frozenset()),
    "granite": Family(
        factors={
            "embedding_scale": "embedding_multiplier",
            "residual_scale": "residual_multiplier",
            "attention_scale": "attention_multiplier",
            "logits_scale": "logits_scaling",
        }
    ),
    "olmo2": Family(norms=POST, head_norms="whole", biased=_ATTENTION),
    "gemma2": _GEMMA2,
    "gemma3_text": replace(_GEMMA2, head_norms="each", local=True, factors=_GEMMA3_FACTORS),
    "mixtral": Family(windows="all", experts="num_local_experts", extra=_EXPERT_KEYS),
    "qwen3_moe": Family(
        head_norms="each",
        windows="all",
        experts="num_local_experts",
        extra=_EXPERT_KEYS | _NORMALIZE | _WINDOW_KEYS | _SPARSE_KEYS,
    ),
    "olmoe": Family(head_norms="whole", experts="num_experts", extra=_EXPERT_KEYS | _NORMALIZE),
}
"""By ``model_type``."""

_FACTORS: dict[str, Callable[[float], float]] = {
    "query_pre_attn_scalar": lambda width: width**-0.5,
    "logits_scaling": lambda divisor: 1 / divisor,
}
"""Keys whose value is not the factor itself."""


@dataclass(frozen=True)
class LayerKind:
    """``window``: positions that a row attends to, None = all. ``rotation``: kind of layer whose rotary embedding is
    used, "" = the only one of the model, None = none."""

    window: int | None
    rotation: str | None


@dataclass(frozen=True)
class Description:
    """The features of a configured model. ``factors``: named as in ``targets.native.model.Features``.
    ``switch_length``: see ``rotary.switch_length``."""

    family: Family
    layers: tuple[LayerKind, ...]
    gate: str
    factors: Mapping[str, float]
    experts: int
    chosen: int
    normalize_chosen: bool
    switch_length: int | None

    @property
    def rotations(self) -> tuple[str, ...]:
        return tuple(sorted({layer.rotation for layer in self.layers if layer.rotation is not None}))


def describe(config: Mapping[str, Any], defaults: Mapping[str, Any]) -> Description:
    """The description of ``config``, as of transformers; ``defaults``: those of its class. Raises UserError for what
    the native step does not support."""
    name = config.get("model_type")
    if name not in FAMILIES:
        raise UserError(f"the native step has no model_type {name}; it has {', '.join(FAMILIES)}")
    family = FAMILIES[name]
    for key in family.unknown(config, defaults=defaults):
        raise UserError(f"config.json: {key} ({config[key]!r:.40}) is not supported for {name} by the native step")
    gate = config.get(family.activation)
    if gate not in ACTIVATIONS:
        raise unknown(family.activation, gate, ACTIVATIONS)
    layers = _layers(config, family)
    for kind in dict.fromkeys(layer.rotation for layer in layers if layer.rotation is not None):
        _check_rotation(config, family, kind)
    normalize = "norm_topk_prob" not in family.extra or bool(config["norm_topk_prob"])
    experts = int(config[family.experts]) if family.experts else 0
    chosen = int(config["num_experts_per_tok"]) if family.experts else 0
    return Description(
        family, layers, gate, _factors(config, family), experts, chosen, normalize, switch_length(config)
    )


def _layers(config: Mapping[str, Any], family: Family) -> tuple[LayerKind, ...]:
    count, window = config["num_hidden_layers"], config.get("sliding_window")
    kinds = [SLIDING if family.windows == "all" and window is not None else FULL] * count
    if family.windows == "layer_types":
        kinds = list(config["layer_types"])
    if odd := [kind for kind in kinds if kind not in (SLIDING, FULL)]:
        raise unknown("kind in layer_types", odd[0], (SLIDING, FULL))
    if len(kinds) != count or (SLIDING in kinds and (type(window) is not int or window < 1)):
        raise UserError(f"config.json: layer_types and sliding_window ({window!r:.40}) do not fit {count} layers")
    rotated = config[family.rotated_key] if family.rotated_key else [1] * count
    return tuple(
        LayerKind(window if kind == SLIDING else None, (kind if family.local else "") if rotates else None)
        for kind, rotates in zip(kinds, rotated, strict=False)
    )


def _check_rotation(config: Mapping[str, Any], family: Family, kind: str) -> None:
    rope = rotary({"rope_parameters": config["rope_parameters"].get(kind)} if family.local else config)
    known = ROPE_KEYS | ({"partial_rotary_factor"} if family.partial else set())
    for key, value in rope.items():
        if key not in known and value not in (None, False) and (key, value) != ("partial_rotary_factor", 1.0):
            raise UserError(f"config.json: rope_parameters: {key} ({value!r:.40}) is not supported by the native step")
    kinds = ROTATIONS if family.local else (*ROTATIONS, "longrope")
    if rope["rope_type"] not in kinds:
        raise unknown("rope_type in config.json", rope["rope_type"], kinds)


def _factors(config: Mapping[str, Any], family: Family) -> dict[str, float]:
    found = {}
    for name, key in family.factors.items():
        if (value := config.get(key)) is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
            raise UserError(f"config.json: {key} must be a number above 0, not {value!r:.40}")
        found[name] = _FACTORS.get(key, float)(value)
    return found
