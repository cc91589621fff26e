"""EAGLE heads in their official checkpoint formats (Li et al. 2024, arXiv 2401.15077; 2025, arXiv 2503.01840).

A folder with ``config.json`` (the keys of a Llama of one layer) and ``model.safetensors`` or ``pytorch_model.bin``.
EAGLE-1 and EAGLE-2 share one format, EAGLE-3 has another; the tensors tell them apart. With h = hidden size, V =
vocabulary, D = draft vocabulary:

- EAGLE-1/2: ``fc.weight [h, 2h]`` reads token embedding and feature, ``fc.bias [h]`` unless the configuration says
  ``"bias": false``; ``embed_tokens.weight [V, h]``; one layer ``layers.0.*`` without a norm before attention. Logits
  are made by the target's output matrix.
- EAGLE-3: ``fc.weight [h, 3t]`` joins three of the target's hidden states of size t, or as many as ``LAYER_IDS``
  name; one layer ``midlayer.*`` whose
  attention reads embedding and hidden state, 2h wide; ``norm.weight``; ``lm_head.weight [D, h]``. With D < V, ``d2t
  [D]`` holds what to add to a draft token id to get the target's, ``t2d [V]`` which tokens of the target have one. The
  embeddings are the target's unless ``embed_tokens.weight [V, h]`` is there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.drafters.tensors import PADDED, Shapes, check_shapes, find, read_config, read_shapes
from ianvs_specdec.models.layout import ModelSizes
from ianvs_specdec.models.rotary import ROTATIONS, rotary

WHAT = "EAGLE head"
FILES = ("model.safetensors", "pytorch_model.bin")
LEAST_LAYERS = 7
"""Of a target whose inner layers EAGLE-3 reads: fewer have no three of them."""
IGNORED = "rotary_emb.inv_freq"
LAYER_IDS = ("eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids")
UNREAD = (
    *("norm_before_residual", "norm_output", "norm_before_fc", "parallel_drafting"),
    *("use_sliding_window", "layer_types", "mlp_bias", "use_qk_norm", "qk_norm"),
)
"""Keys of a configuration by which a head computes something else, unless they are false."""
READ = {"partial_rotary_factor": (None, 1), "model_type": (None, "llama", "qwen2", "eagle"), "rope_type": ROTATIONS}
"""Keys of a configuration, and the values with which a head computes what is computed here."""
NEWER = re.compile(r"(.*\.)?(fc|input)_norms?\.")
"""Tensors of EAGLE-3.1."""


@dataclass(frozen=True)
class HeadConfig:
    """Sizes of a head. ``target_hidden`` is the hidden size of the target it was trained for."""

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
    if target is not None:
        check_fit(folder, config, target, eagle3=is_eagle3(shapes), embedded="embed_tokens.weight" in shapes)


def is_eagle3(names: Iterable[str]) -> bool:
    """Whether a head with tensors of these names is one of EAGLE-3."""
    return any(name.startswith("midlayer.") or name == "d2t" for name in names)


def check_tensors(path: Path, config: HeadConfig, shapes: Shapes) -> None:
    """Raise ``UserError`` that names the tensor which is missing, unknown or of the wrong shape."""
    eagle3 = is_eagle3(shapes)
    if newer := [name for name in shapes if NEWER.match(name)]:
        reason = f"this is an EAGLE-3.1 head (tensor {newer[0]}): none after EAGLE-3 is computed here"
        raise UserError(f"{path}: {reason}", key="head")
    kind = "an EAGLE-3 head" if eagle3 else f'an EAGLE head with "bias": {json.dumps(config.bias)} in config.json'
    found = {name: shape for name, shape in shapes.items() if not name.endswith(IGNORED)}
    ids = f" ({len(config.layer_ids)} in {LAYER_IDS[0]})" if config.layer_ids else ""
    check_shapes(path, found, *_shapes(config, eagle3), kind=kind, source=f"config.json{ids}")


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


def layer_of(eagle3: bool) -> str:
    return "midlayer." if eagle3 else "layers.0."


def _shapes(config: HeadConfig, eagle3: bool) -> tuple[Shapes, Shapes]:
    """The tensors that a head must have and those that it may have."""
    h, layer = config.hidden, layer_of(eagle3)
    inputs = 2 * h if eagle3 else h
    query, key = config.queries * config.width, config.keys * config.width
    attention = {"q": query, "k": key, "v": key}
    shapes: Shapes = {f"{layer}self_attn.{name}_proj.weight": (rows, inputs) for name, rows in attention.items()}
    if config.llama.get("attention_bias"):
        shapes[f"{layer}self_attn.o_proj.bias"] = (h,)
    if config.qkv_bias:
        shapes |= {f"{layer}self_attn.{name}_proj.bias": (rows,) for name, rows in attention.items()}
    shapes |= {
        f"{layer}self_attn.o_proj.weight": (h, query),
        f"{layer}mlp.gate_proj.weight": (config.intermediate, h),
        f"{layer}mlp.up_proj.weight": (config.intermediate, h),
        f"{layer}mlp.down_proj.weight": (h, config.intermediate),
        f"{layer}post_attention_layernorm.weight": (h,),
    }
    embedding: Shapes = {"embed_tokens.weight": (config.vocabulary, h)}
    if not eagle3:
        return shapes | embedding | {"fc.weight": (h, 2 * h)} | ({"fc.bias": (h,)} if config.bias else {}), {}
    shapes |= {
        f"{layer}input_layernorm.weight": (h,),
        f"{layer}hidden_norm.weight": (h,),
        "fc.weight": (h, (len(config.layer_ids) or 3) * config.target_hidden),
        "norm.weight": (h,),
        "lm_head.weight": (config.draft_vocabulary, h),
    }
    mapping: Shapes = {"d2t": (config.draft_vocabulary,), "t2d": (config.vocabulary,)}
    if config.draft_vocabulary == config.vocabulary:
        return shapes, embedding | mapping
    return shapes | {"d2t": mapping["d2t"]}, embedding | {"t2d": mapping["t2d"]}


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
        layer_ids=next((flags[name] for name in LAYER_IDS if flags.get(name)), ()),
        llama=config,
    )
    if not isinstance(sizes.layer_ids, Sequence) or not all(type(layer) is int for layer in sizes.layer_ids):
        reason = f"{LAYER_IDS[0]} must be a list of layers, not {sizes.layer_ids!r:.40}"
        raise UserError(f"{path}: {reason}", key="head")
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
    flags = {**rotary(config), **(nested if isinstance(nested, Mapping) else {}), **config}
    flags["layer_types"] = [kind for kind in config.get("layer_types") or () if kind != "full_attention"]
    for name in (*UNREAD, *READ):
        if flags.get(name) not in READ[name] if name in READ else flags.get(name):
            window = f" (sliding_window {config.get('sliding_window')})" if name == "layer_types" else ""
            raise UserError(f"{path}: {name} is {flags[name]!r:.60}{window}: no such head is computed here", key="head")
    return flags
