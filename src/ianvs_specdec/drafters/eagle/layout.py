"""EAGLE heads in the formats of their authors (Li et al. 2024, arXiv 2401.15077; 2025, arXiv 2503.01840), of SpecForge
and of ``speculators``.

A folder with ``config.json`` (the keys of a Llama or Qwen of one layer) and ``model.safetensors`` or
``pytorch_model.bin``. EAGLE-1 and EAGLE-2 share one format, EAGLE-3 has another; the tensors tell them apart. With h =
hidden size, V = vocabulary, D = draft vocabulary:

- EAGLE-1/2: ``fc.weight [h, 2h]`` reads token embedding and feature, ``fc.bias [h]`` unless the configuration says
  ``"bias": false``; ``embed_tokens.weight [V, h]``; one layer ``layers.0.*`` without a norm before attention. Logits
  are made by the target's output matrix, or where there is a file ``freq_*.pt``, by its rows for the token ids in
  that list (FR-Spec: Zhao et al. 2025, arXiv 2502.14856).
- EAGLE-3: ``fc.weight [h, 3t]`` joins three of the target's hidden states of size t, or as many as ``LAYER_IDS``
  name; one layer ``midlayer.*``, or ``layers.0.*``, whose attention reads embedding and hidden state, 2h wide;
  ``norm.weight``; ``lm_head.weight [D, h]``. With D < V, ``d2t [D]`` holds what to add to a draft token id to get the
  target's, ``t2d [V]`` which tokens of the target have one. The embeddings are the target's unless
  ``embed_tokens.weight [V, h]`` is there. Flags of EAGLE-3.1 and ``speculators``: see ``FLAGS``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.drafters.tensors import PADDED, Shapes, check_shapes, find, read_config, read_ids, read_shapes
from ianvs_specdec.models.rotary import ROTATIONS, rotary
from ianvs_specdec.models.validation import ModelSizes

WHAT = "EAGLE head"
FILES = ("model.safetensors", "pytorch_model.bin")
LEAST_LAYERS = 7
"""Of a target whose inner layers EAGLE-3 reads: fewer have no three of them."""
IGNORED = ("rotary_emb.inv_freq", "verifier_norm.weight", "verifier_lm_head.weight")
LAYER_IDS = ("eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids")
FLAGS = ("norm_before_residual", "norm_output", "norm_before_fc", "fc_norm")
"""Of EAGLE-3: the residual is the normed hidden state; hidden states are fed back after ``norm``; one norm
``input_norm`` of all that ``fc`` joins; a norm ``fc_norm.{i}`` of each."""
UNREAD = (
    *("parallel_drafting", "mask_token_id", "ptd_token_id", "dflash_config", "quantization_config"),
    *("compression_config", "num_experts", "num_local_experts", "n_routed_experts", "q_lora_rank", "kv_lora_rank"),
)
"""Keys of a configuration by which a head computes something else, unless they are false."""
READ = {
    "model_type": (None, "llama", "qwen2", "qwen3", "eagle"),
    "rope_type": ROTATIONS,
    "layer_types": (None, ["sliding_attention"]),
    "parallel_draft_step": (None, 1),
    **dict.fromkeys(("use_aux_hidden_state", "next_layer_regular"), (None, True)),
    **dict.fromkeys(("use_input_layernorm_in_first_layer", "use_last_layernorm"), (None, True)),
    **dict.fromkeys(FLAGS, (None, False, True)),
    **dict.fromkeys(("final_logit_softcapping", "attn_logit_softcapping", "query_pre_attn_scalar"), (None, 0)),
    **dict.fromkeys(("partial_rotary_factor", "logit_scale", "logits_scaling", "embedding_multiplier"), (None, 1)),
    **dict.fromkeys(("residual_multiplier", "attention_multiplier", "scale_emb", "scale_depth"), (None, 1)),
}
"""Keys of a configuration, and the values with which a head computes what is computed here."""
SWITCHES = (
    *("bias", "qkv_bias", "attention_bias", "mlp_bias", "use_qk_norm", "qk_norm", "use_sliding_window"),
    *("use_cache", "tie_word_embeddings", "embed_requires_grad", "return_dict", "is_decoder", "do_sample"),
    *("output_attentions", "output_hidden_states", "gradient_checkpointing", "torchscript"),
)
"""Keys that may be true."""


@dataclass(frozen=True)
class HeadConfig:
    """Sizes of a head. ``target_hidden`` is the hidden size of the target it was trained for; ``flags`` are those of
    ``FLAGS`` that are set, ``window`` the positions that its attention sees, None = all."""

    hidden: int
    intermediate: int
    queries: int
    keys: int
    width: int
    vocabulary: int
    draft_vocabulary: int
    target_hidden: int
    epsilon: float
    bias: bool
    qkv_bias: bool
    head_norms: bool
    flags: frozenset[str]
    window: int | None
    layer_ids: Sequence[int]
    llama: dict[str, Any]

    @property
    def projected(self) -> int:
        """Rows of the projections to queries, keys and values together."""
        return (self.queries + 2 * self.keys) * self.width


def check_files(head: str | Path, target: ModelSizes | None) -> None:
    """Raise ``UserError`` if the folder ``head`` is no head, or none for a ``target`` of these sizes. Reads headers."""
    folder = Path(head)
    path = find(folder, FILES, WHAT)
    config, shapes = head_config(folder), read_shapes(path, WHAT)
    check_tensors(path, config, shapes)
    frequent_ids(folder, config, eagle3=is_eagle3(shapes))
    if target is not None:
        check_fit(folder, config, target, eagle3=is_eagle3(shapes), embedded="embed_tokens.weight" in shapes)


def is_eagle3(names: Iterable[str]) -> bool:
    return any(name.startswith("midlayer.") or name in ("d2t", "layers.0.hidden_norm.weight") for name in names)


def layer_of(names: Iterable[str]) -> str:
    """What the names of the layer's tensors begin with."""
    return "midlayer." if any(name.startswith("midlayer.") for name in names) else "layers.0."


def check_tensors(path: Path, config: HeadConfig, shapes: Shapes) -> None:
    """Raise ``UserError`` that names the tensor which is missing, unknown or of the wrong shape."""
    eagle3, flags = is_eagle3(shapes), sorted(config.flags)
    if flags and not eagle3:
        raise UserError(f"{path.parent / 'config.json'}: {flags[0]} is for EAGLE-3, this is EAGLE-1 or 2", key="head")
    kind = "an EAGLE-3 head" if eagle3 else f'an EAGLE head with "bias": {json.dumps(config.bias)} in config.json'
    kind += f" with {', '.join(flags)}" if flags else ""
    found = {name: shape for name, shape in shapes.items() if not name.endswith(IGNORED)}
    ids = f" ({len(config.layer_ids)} in {LAYER_IDS[0]})" if config.layer_ids else ""
    layer = layer_of(shapes)
    required, optional = _eagle3_shapes(config, layer) if eagle3 else (_eagle1_shapes(config, layer), {})
    check_shapes(path, found, required, optional, kind=kind, source=f"config.json{ids}")


def frequent_ids(folder: Path, config: HeadConfig, *, eagle3: bool) -> list[int] | None:
    """The draft vocabulary of an EAGLE-1 or EAGLE-2 head, of a file of FR-Spec's; None = the target's."""
    files = sorted(folder.glob("freq_*.pt"))
    if not files:
        return None
    if eagle3 or len(files) > 1:
        advice = "an EAGLE-3 head has its own in d2t: remove them" if eagle3 else "keep one of them"
        raise UserError(
            f"{folder} holds {files[0].name}, a draft vocabulary ({len(files)} files): {advice}", key="head"
        )
    return read_ids(files[0], config.vocabulary, WHAT)


def check_fit(folder: Path, config: HeadConfig, target: ModelSizes, *, eagle3: bool, embedded: bool) -> tuple[int, ...]:
    """Which of the target's hidden states the head reads (see ``Target.open``). ``embedded``: it has embeddings of its
    own. Raises ``UserError`` if the head is for another target."""
    wanted = config.target_hidden if eagle3 else config.hidden
    sizes = (("hidden size", wanted, target.hidden), ("vocabulary", config.vocabulary, target.vocabulary))
    for what, own, others in sizes:
        if own != others:
            raise UserError(
                f"the EAGLE head in {folder} is for a {what} of {own}, the target has {others}: use the head that was "
                f"trained for this target{PADDED if what == 'vocabulary' else ''}",
                key="head",
            )
    if eagle3 and not embedded and config.hidden != target.hidden:
        raise UserError(
            f"the EAGLE-3 head in {folder} has a hidden size of {config.hidden} and no embed_tokens.weight, "
            f"so it needs the target's embeddings, which have {target.hidden}",
            key="head",
        )
    return _layers_read(folder, config, target.layers) if eagle3 else (-1,)


def _layers_read(folder: Path, config: HeadConfig, layers: int) -> tuple[int, ...]:
    """Those that an EAGLE-3 head reads of a target of so many ``layers``, in the order in which ``fc`` joins them."""
    usual = (2, layers // 2, layers - 3)
    if not config.layer_ids and layers < LEAST_LAYERS:
        told = f"EAGLE-3 reads three inner layers of a target of at least {LEAST_LAYERS}; this one has {layers}"
        raise UserError(told, key="head")
    # What SGLang reads, under eagle_config, counts a layer for its output; what vLLM reads, at the top, for its input.
    # The usual layers tell by themselves how they were counted.
    ids = config.layer_ids or usual
    nested = not any(config.llama.get(name) for name in LAYER_IDS)
    outputs = sorted(ids) == sorted(layer - 1 for layer in usual) or (nested and sorted(ids) != sorted(usual))
    if wrong := [layer for layer in ids if not 0 <= layer < layers - outputs]:
        told = f"{LAYER_IDS[0]} is {list(ids)}, and the target has no layer {wrong[0]} to read (0 to "
        advice = "use the head that was trained for this target"
        raise UserError(f"{folder / 'config.json'}: {told}{layers - 1 - outputs}): {advice}", key="head")
    return tuple(layer + outputs for layer in ids)


def _layer_shapes(config: HeadConfig, layer: str, inputs: int) -> Shapes:
    """Of the layer's tensors, whose attention reads so many ``inputs``."""
    h, inner = config.hidden, config.intermediate
    query, key = config.queries * config.width, config.keys * config.width
    attention = {"q": query, "k": key, "v": key}
    shapes: Shapes = {f"{layer}self_attn.{name}_proj.weight": (rows, inputs) for name, rows in attention.items()}
    if config.llama.get("attention_bias"):
        shapes[f"{layer}self_attn.o_proj.bias"] = (h,)
    if config.qkv_bias:
        shapes |= {f"{layer}self_attn.{name}_proj.bias": (rows,) for name, rows in attention.items()}
    if config.head_norms:
        shapes |= {f"{layer}self_attn.{name}_norm.weight": (config.width,) for name in "qk"}
    if config.llama.get("mlp_bias"):
        shapes |= {f"{layer}mlp.{name}_proj.bias": (inner,) for name in ("gate", "up")}
        shapes[f"{layer}mlp.down_proj.bias"] = (h,)
    return shapes | {
        f"{layer}self_attn.o_proj.weight": (h, query),
        f"{layer}mlp.gate_proj.weight": (inner, h),
        f"{layer}mlp.up_proj.weight": (inner, h),
        f"{layer}mlp.down_proj.weight": (h, inner),
        f"{layer}post_attention_layernorm.weight": (h,),
    }


def _eagle1_shapes(config: HeadConfig, layer: str) -> Shapes:
    h = config.hidden
    shapes = _layer_shapes(config, layer, h) | {"embed_tokens.weight": (config.vocabulary, h), "fc.weight": (h, 2 * h)}
    return shapes | ({"fc.bias": (h,)} if config.bias else {})


def _eagle3_shapes(config: HeadConfig, layer: str) -> tuple[Shapes, Shapes]:
    """The tensors that a head must have and those that it may have."""
    h, states = config.hidden, len(config.layer_ids) or 3
    shapes = _layer_shapes(config, layer, 2 * h) | {
        f"{layer}input_layernorm.weight": (h,),
        f"{layer}hidden_norm.weight": (h,),
        "fc.weight": (h, states * config.target_hidden),
        "norm.weight": (h,),
        "lm_head.weight": (config.draft_vocabulary, h),
    }
    if "norm_before_fc" in config.flags:
        shapes["input_norm.weight"] = (states * config.target_hidden,)
    if "fc_norm" in config.flags:
        shapes |= {f"fc_norm.{index}.weight": (config.target_hidden,) for index in range(states)}
    optional: Shapes = {"embed_tokens.weight": (config.vocabulary, h), "t2d": (config.vocabulary,)}
    if config.llama.get("bias"):
        optional["fc.bias"] = (h,)
    mapping: Shapes = {"d2t": (config.draft_vocabulary,)}
    if config.draft_vocabulary == config.vocabulary:
        return shapes, optional | mapping
    return shapes | mapping, optional


def head_config(folder: Path) -> HeadConfig:
    """``config.json`` of a head. Raises ``UserError`` naming the key that is wrong."""
    path, config = folder / "config.json", read_config(folder, WHAT)
    flags = _flags(path, config)

    def whole(key: str, default: int | None = None) -> int:
        value = config.get(key)
        value = default if value is None else value
        if type(value) is not int or value < 1:
            found = f"is {value!r}" if value is not None else "is missing"
            raise UserError(f"{path}: {key} {found}, expected a whole number of at least 1", key="head")
        return value

    def number(key: str, default: float) -> float:
        value = config.get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise UserError(f"{path}: {key} is {value!r}, expected a number", key="head")
        return float(value)

    hidden, queries = whole("hidden_size"), whole("num_attention_heads")
    sizes = HeadConfig(
        hidden=hidden,
        intermediate=whole("intermediate_size"),
        queries=queries,
        keys=whole("num_key_value_heads", queries),
        width=whole("head_dim", hidden // queries),
        vocabulary=whole("vocab_size"),
        draft_vocabulary=whole("draft_vocab_size", whole("vocab_size")),
        target_hidden=whole("target_hidden_size", hidden),
        epsilon=number("rms_norm_eps", 1e-6),
        bias=bool(config.get("bias", True)),
        qkv_bias=bool(config.get("qkv_bias", config.get("attention_bias") or config.get("model_type") == "qwen2")),
        head_norms=config.get("model_type") == "qwen3" or bool(flags.get("use_qk_norm") or flags.get("qk_norm")),
        flags=frozenset(name for name in FLAGS if flags.get(name)),
        window=whole("sliding_window") if _slides(path, config) else None,
        layer_ids=next((flags[name] for name in LAYER_IDS if flags.get(name)), ()),
        llama=config,
    )
    if not isinstance(sizes.layer_ids, Sequence) or not all(type(layer) is int for layer in sizes.layer_ids):
        reason = f"{LAYER_IDS[0]} must be a list of layers, not {sizes.layer_ids!r:.40}"
        raise UserError(f"{path}: {reason}", key="head")
    if {"norm_before_fc", "fc_norm"} <= sizes.flags:
        raise UserError(f"{path}: norm_before_fc and fc_norm exclude each other", key="head")
    if sizes.width % 2:
        raise UserError(f"{path}: the width of an attention head is {sizes.width}, expected an even number", key="head")
    if config.get("hidden_act", "silu") != "silu" or whole("num_hidden_layers", 1) != 1 or queries % sizes.keys:
        raise UserError(
            f"{path}: an EAGLE head is one Llama layer: num_hidden_layers 1, hidden_act silu, and num_attention_heads "
            "a multiple of num_key_value_heads",
            key="head",
        )
    return sizes


def _flags(path: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """All keys, those of the parts of the configuration among them. Raises ``UserError`` that names one by which the
    head computes what is not computed here."""
    nested = config.get("eagle_config")
    inner, outer = _stated(nested if isinstance(nested, Mapping) else {}), _stated(config)
    for name in inner:
        if inner[name] != outer.get(name, inner[name]):
            found = f"{name} is {outer[name]!r:.60} and in eagle_config {inner[name]!r:.60}"
            raise UserError(f"{path}: {found}: remove the wrong one", key="head")
    flags = {**rotary(config), **inner, **outer}
    for name in (*UNREAD, *READ, *inner, *outer):
        value = flags.get(name)
        unread = value not in READ[name] if name in READ else value if name in UNREAD else value is True
        if unread and name not in SWITCHES:
            raise UserError(f"{path}: {name} is {value!r:.60}: no such head is computed here", key="head")
    return flags


def _stated(config: Mapping[str, Any]) -> dict[str, Any]:
    """What is not empty. A list of layers with full attention is often the target's, and asks for nothing."""
    layers = config.get("layer_types")
    full = ["full_attention"] * len(layers) if isinstance(layers, list) else None
    return {name: value for name, value in config.items() if value not in (None, [], {}, "", full)}


def _slides(path: Path, config: Mapping[str, Any]) -> bool:
    """Whether attention has a sliding window, as transformers reads the keys."""
    if config.get("use_sliding_window") and not config.get("layer_types"):
        raise UserError(f"{path}: use_sliding_window needs layer_types to say whether the layer has one", key="head")
    slides = "sliding_attention" in (config.get("layer_types") or ())
    return slides and (config.get("model_type") not in ("qwen2", "qwen3") or bool(config.get("use_sliding_window")))
