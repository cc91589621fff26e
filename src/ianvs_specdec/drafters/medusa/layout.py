"""Medusa heads in their official checkpoint format (Cai et al. 2024, arXiv 2401.10774).

A folder with ``config.json`` and ``medusa_lm_head.safetensors`` or ``medusa_lm_head.pt``. Head ``i`` has
``medusa_num_layers`` residual blocks, ``{i}.{j}.linear.weight`` ``[hidden, hidden]`` and ``{i}.{j}.linear.bias``
``[hidden]``, and an output matrix ``{i}.{medusa_num_layers}.weight`` ``[vocabulary, hidden]``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.drafters.tensors import PADDED, Shapes, find, read_config, read_shapes
from ianvs_specdec.models.layout import ModelSizes

WHAT = "Medusa heads"
FILES = ("medusa_lm_head.safetensors", "medusa_lm_head.pt")

_TENSOR = re.compile(r"(\d+)\.(\d+)\.(linear\.weight|linear\.bias|weight)")


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
    check_shapes(folder, path, shapes, target.hidden, target.vocabulary)


def check_shapes(
    folder: Path, path: Path, shapes: Mapping[str, tuple[int, ...]], hidden: int, vocabulary: int
) -> tuple[int, int]:
    """How many heads of how many layers are wanted of a file with tensors of these ``shapes``.

    Raises ``UserError`` that names the tensor which is missing, unknown or of the wrong shape for a target of this
    ``hidden`` size and ``vocabulary``.
    """
    heads, layers = _counts(folder, shapes)
    expected: Shapes = {}
    # However many config.json asks for: beyond as many as there are tensors, one is missing for certain.
    for head in range(min(heads, len(shapes) + 1)):
        for layer in range(min(layers, len(shapes) + 1)):
            expected[f"{head}.{layer}.linear.weight"] = (hidden, hidden)
            expected[f"{head}.{layer}.linear.bias"] = (hidden,)
        expected[f"{head}.{layers}.weight"] = (vocabulary, hidden)
    _check(path, shapes, expected, heads, layers)
    return heads, layers


def _counts(folder: Path, names: Iterable[str]) -> tuple[int, int]:
    """How many heads config.json asks for, or there are, by the ``names`` of the tensors; and layers of each."""
    path, config = folder / "config.json", read_config(folder, WHAT)
    stored = {int(match[1]) for name in names if (match := _TENSOR.fullmatch(name))}
    for key, least in (("medusa_num_heads", 1), ("medusa_num_layers", 0)):
        value = config.get(key)
        if value is not None and (type(value) is not int or value < least):
            raise UserError(f"{path}: {key} must be a whole number from {least}, not {value!r}", key="head")
    heads, layers = config.get("medusa_num_heads"), config.get("medusa_num_layers")
    return len(stored) if heads is None else heads, 1 if layers is None else layers


def _check(path: Path, found: Mapping[str, tuple[int, ...]], shapes: Shapes, heads: int, layers: int) -> None:
    says = f"for {heads} heads of {layers} layers"
    if not shapes:
        raise UserError(f"{path} holds no Medusa heads: expected tensors such as 0.0.linear.weight", key="head")
    for name, shape in shapes.items():
        if name not in found:
            raise UserError(f"{path} lacks the tensor {name}, expected {list(shape)} {says}", key="head")
        if tuple(found[name]) != shape:
            raise UserError(
                f"{path}: tensor {name} has shape {list(found[name])}, the target needs {list(shape)}",
                key="head",
            )
    for name in found:
        match = _TENSOR.fullmatch(name)
        further_head = match is not None and int(match[1]) >= heads
        if name not in shapes and not further_head:
            raise UserError(f"{path} holds the tensor {name}, which is unknown {says} (config.json)", key="head")
