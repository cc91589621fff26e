"""Medusa heads in the three layouts of their checkpoints (Cai et al. 2024, arXiv 2401.10774).

A folder with ``config.json`` and tensors:

- the authors': head ``i`` has ``medusa_num_layers`` residual blocks, ``{i}.{j}.linear.weight`` ``[hidden, hidden]`` and
  ``{i}.{j}.linear.bias`` ``[hidden]``, and an output matrix ``{i}.{medusa_num_layers}.weight`` ``[vocabulary,
  hidden]``; all names may begin with ``medusa_head.`` or ``medusa_heads.`` (TensorRT-LLM);
- without output matrices: the heads use the target's (version 2 of Text Generation Inference);
- vLLM's: ``num_heads``, ``num_hidden_layers``, ``blocks.{i}.layers.{j}.weight``, ``.bias`` with ``medusa_fc_bias``,
  ``lm_heads.{i}.weight``, of which ``original_lm_head`` shares the first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.drafters.tensors import PADDED, Shapes, check_shapes, find, read_config, read_shapes
from ianvs_specdec.models.validation import ModelSizes

WHAT = "Medusa heads"
FILES = ("medusa_lm_head.safetensors", "medusa_lm_head.pt", "model.safetensors", "pytorch_model.bin")

_BLOCK = re.compile(r"(medusa_heads?\.)?(\d+)\.\d+\.(linear\.weight|linear\.bias|weight)")
_VLLM = re.compile(r"(medusa_heads?\.)?(?:blocks\.(\d+)\.layers\.\d+|lm_heads\.(\d+))\.(weight|bias)")


@dataclass(frozen=True)
class Layout:
    """So many ``heads`` of so many ``layers``, and how their tensors are named. ``outputs``: whether they have output
    matrices, ``shared`` one for all."""

    heads: int
    layers: int
    prefix: str
    vllm: bool
    bias: bool
    outputs: bool
    shared: bool

    def block(self, head: int, layer: int) -> str:
        own = f"blocks.{head}.layers.{layer}" if self.vllm else f"{head}.{layer}.linear"
        return f"{self.prefix}{own}"

    def output(self, head: int) -> str:
        own = f"lm_heads.{0 if self.shared else head}" if self.vllm else f"{head}.{self.layers}"
        return f"{self.prefix}{own}.weight"


def check_files(head: str | Path, target: ModelSizes | None) -> None:
    """Raise ``UserError`` if the folder ``head`` holds no heads, or none for a ``target`` of these sizes. Reads no
    numbers."""
    folder = Path(head)
    path = find(folder, FILES, WHAT)
    config, shapes = read_config(folder, WHAT), read_shapes(path, WHAT)
    if target is None:
        return
    for key, size in (("hidden_size", target.hidden), ("vocab_size", target.vocabulary)):
        if config.get(key, size) != size:
            raise UserError(
                f"the Medusa heads in {folder} are for a {key} of {config[key]}, the target has {size}: use heads that "
                f"were trained for this target{PADDED if key == 'vocab_size' else ''}",
                key="head",
            )
    check_tensors(folder, path, shapes, target.hidden, target.vocabulary)


def check_tensors(folder: Path, path: Path, shapes: Shapes, hidden: int, vocabulary: int) -> Layout:
    """The layout of the heads that are wanted of a file with tensors of these ``shapes``.

    Raises ``UserError`` that names the tensor which is missing, unknown or of the wrong shape for a target of this
    ``hidden`` size and ``vocabulary``.
    """
    layout = _layout(folder, shapes)
    expected: Shapes = {}
    # However many config.json asks for: beyond as many as there are tensors, one is missing for certain.
    for head in range(min(layout.heads, len(shapes) + 1)):
        for layer in range(min(layout.layers, len(shapes) + 1)):
            expected[f"{layout.block(head, layer)}.weight"] = (hidden, hidden)
            if layout.bias:
                expected[f"{layout.block(head, layer)}.bias"] = (hidden,)
        if layout.outputs:
            expected[layout.output(head)] = (vocabulary, hidden)
    if not expected:
        raise UserError(f"{path} holds no Medusa heads: expected tensors such as 0.0.linear.weight", key="head")
    found = {name: shape for name, shape in shapes.items() if (_head_of(name) or 0) < layout.heads}
    kind = f"{layout.heads} Medusa heads of {layout.layers} layers{' as vLLM has them' if layout.vllm else ''}"
    check_shapes(path, found, expected, {}, kind=kind, source="the target")
    return layout


def _head_of(name: str) -> int | None:
    """To which head a tensor belongs, None where its name does not say."""
    match = _BLOCK.fullmatch(name) or _VLLM.fullmatch(name)
    return int(next(text for text in match.groups()[1:] if text is not None)) if match else None


def _layout(folder: Path, names: Iterable[str]) -> Layout:
    """How many heads and layers config.json asks for, or there are by the ``names`` of the tensors, and of what
    layout they are."""
    path, config = folder / "config.json", read_config(folder, WHAT)
    named = {name: match for name in names if (match := _BLOCK.fullmatch(name) or _VLLM.fullmatch(name))}
    vllm = any(match.re is _VLLM for match in named.values())
    for key, neutral in (("truncated_vocab_size", config.get("vocab_size")), ("logit_scale", 1)):
        if config.get(key) not in (None, neutral):
            raise UserError(f"{path}: {key} is {config[key]!r:.40}: no such heads are computed here", key="head")
    stored = {_head_of(name) for name in named}
    layers = _count(path, config, "num_hidden_layers" if vllm else "medusa_num_layers", 0)
    heads = _count(path, config, "num_heads" if vllm else "medusa_num_heads", 1)
    return Layout(
        heads=len(stored) if heads is None else heads,
        layers=1 if layers is None else layers,
        prefix=next((match[1] or "" for match in named.values()), ""),
        vllm=vllm,
        bias=not vllm or bool(config.get("medusa_fc_bias")),
        outputs=not named or any(match[3] not in (None, "linear.weight", "linear.bias") for match in named.values()),
        shared=bool(config.get("original_lm_head")),
    )


def _count(path: Path, config: Mapping[str, Any], key: str, least: int) -> int | None:
    value = config.get(key)
    if value is not None and (type(value) is not int or value < least):
        raise UserError(f"{path}: {key} must be a whole number from {least}, not {value!r}", key="head")
    return value
