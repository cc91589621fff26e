"""EAGLE heads in their official checkpoint formats (Li et al. 2024, arXiv 2401.15077; 2025, arXiv 2503.01840).

A folder with ``config.json`` (the keys of a Llama of one layer) and ``model.safetensors`` or ``pytorch_model.bin``.
EAGLE-1 and EAGLE-2 share one format, EAGLE-3 has another; the tensors tell them apart. With h = hidden size, V =
vocabulary, D = draft vocabulary:

- EAGLE-1/2: ``fc.weight [h, 2h]`` reads token embedding and feature, ``fc.bias [h]`` unless the configuration says
  ``"bias": false``; ``embed_tokens.weight [V, h]``; one layer ``layers.0.*`` without a norm before attention. Logits
  are made by the target's output matrix.
- EAGLE-3: ``fc.weight [h, 3t]`` joins three of the target's hidden states of size t; one layer ``midlayer.*`` whose
  attention reads embedding and hidden state, 2h wide; ``norm.weight``; ``lm_head.weight [D, h]``. With D < V, ``d2t
  [D]`` holds what to add to a draft token id to get the target's, ``t2d [V]`` which tokens of the target have one. The
  embeddings are the target's unless ``embed_tokens.weight [V, h]`` is there.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ianvs_specdec.decoding.fused import ROTATIONS
from ianvs_specdec.drafters.tensors import find, read_config, read_tensors
from ianvs_specdec.errors import UserError

WHAT = "EAGLE head"
FILES = ("model.safetensors", "pytorch_model.bin")

Shapes = dict[str, tuple[int, ...]]


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
    llama: dict[str, Any]

    @property
    def projected(self) -> int:
        """Rows of the projections to queries, keys and values together."""
        return (self.queries + 2 * self.keys) * self.width


@dataclass(frozen=True)
class EagleCheckpoint:
    """A head as read and checked: every tensor has the name and shape that its format asks for."""

    folder: Path
    config: HeadConfig
    tensors: dict[str, Tensor]
    eagle3: bool

    @property
    def layer(self) -> str:
        """What the names of the layer's tensors begin with."""
        return _layer(self.eagle3)

    @classmethod
    def read(cls, folder: Path) -> EagleCheckpoint:
        """Raises ``UserError`` naming the file and the key or tensor that is missing, unknown or of the wrong shape."""
        config = _config(folder)
        path = find(folder, FILES, WHAT)
        tensors = {
            name: tensor
            for name, tensor in read_tensors(path, WHAT).items()
            if not name.endswith("rotary_emb.inv_freq")
        }
        eagle3 = any(name.startswith("midlayer.") or name == "d2t" for name in tensors)
        required, optional = _shapes(config, eagle3)
        _check(path, tensors, required, optional, "EAGLE-3" if eagle3 else "EAGLE")
        if "d2t" in tensors:
            _check_mapping(path, tensors["d2t"], config.vocabulary)
        return cls(folder, config, tensors, eagle3)


def _layer(eagle3: bool) -> str:
    return "midlayer." if eagle3 else "layers.0."


def _shapes(config: HeadConfig, eagle3: bool) -> tuple[Shapes, Shapes]:
    """The tensors that a head must have and those that it may have."""
    h, layer = config.hidden, _layer(eagle3)
    inputs = 2 * h if eagle3 else h
    query, key = config.queries * config.width, config.keys * config.width
    attention = {"q": query, "k": key, "v": key}
    shapes: Shapes = {f"{layer}self_attn.{name}_proj.weight": (rows, inputs) for name, rows in attention.items()}
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
        "fc.weight": (h, 3 * config.target_hidden),
        "norm.weight": (h,),
        "lm_head.weight": (config.draft_vocabulary, h),
    }
    mapping: Shapes = {"d2t": (config.draft_vocabulary,), "t2d": (config.vocabulary,)}
    if config.draft_vocabulary == config.vocabulary:
        return shapes, embedding | mapping
    return shapes | {"d2t": mapping["d2t"]}, embedding | {"t2d": mapping["t2d"]}


def _check(path: Path, tensors: dict[str, Tensor], required: Shapes, optional: Shapes, kind: str) -> None:
    for name, shape in required.items():
        if name not in tensors:
            hint = ', unless config.json says "bias": false' if name == "fc.bias" else ""
            raise UserError(
                f"{path} lacks the tensor {name}, expected {list(shape)} in an {kind} head{hint}", key="head"
            )
    for name, tensor in tensors.items():
        wanted = required.get(name) or optional.get(name)
        if wanted is None:
            raise UserError(
                f"{path} holds the tensor {name}, which an {kind} head with this config.json lacks", key="head"
            )
        if tuple(tensor.shape) != wanted:
            raise UserError(
                f"{path}: tensor {name} has shape {list(tensor.shape)}, config.json asks for {list(wanted)}", key="head"
            )
        if not tensor.is_floating_point() and name not in ("d2t", "t2d"):
            raise UserError(f"{path}: tensor {name} is of type {tensor.dtype}, expected floating point", key="head")


def _check_mapping(path: Path, offsets: Tensor, vocabulary: int) -> None:
    ids = torch.arange(len(offsets)) + offsets
    if offsets.is_floating_point() or not (int(ids.min()) >= 0 and int(ids.max()) < vocabulary):
        raise UserError(
            f"{path}: tensor d2t must hold whole numbers that lead from draft token ids to ids below {vocabulary}",
            key="head",
        )


def _config(folder: Path) -> HeadConfig:
    path, config = folder / "config.json", read_config(folder, WHAT)

    def whole(key: str, default: int | None = None) -> int:
        value = config.get(key)
        value = default if value is None else value
        if type(value) is not int or value < 1:
            found = f"is {value!r}" if value is not None else "is missing"
            raise UserError(f"{path}: {key} {found}, expected a whole number of at least 1", key="head")
        return value

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
        epsilon=float(config.get("rms_norm_eps", 1e-6)),
        bias=bool(config.get("bias", True)),
        qkv_bias=bool(config.get("qkv_bias", False)),
        llama=config,
    )
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ROTATIONS:
        raise UserError(f"{path}: rotary embedding {kind!r}; heads may have {', '.join(ROTATIONS)}", key="head")
    if config.get("hidden_act", "silu") != "silu" or whole("num_hidden_layers", 1) != 1 or queries % sizes.keys:
        raise UserError(
            f"{path}: an EAGLE head is one Llama layer: num_hidden_layers 1, hidden_act silu, and num_attention_heads "
            "a multiple of num_key_value_heads",
            key="head",
        )
    return sizes
