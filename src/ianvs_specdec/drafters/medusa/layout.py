"""Medusa heads in their official checkpoint format (Cai et al. 2024, arXiv 2401.10774).

A folder with ``config.json`` and ``medusa_lm_head.safetensors`` or ``medusa_lm_head.pt``. Head ``i`` has
``medusa_num_layers`` residual blocks, ``{i}.{j}.linear.weight`` ``[hidden, hidden]`` and ``{i}.{j}.linear.bias``
``[hidden]``, and an output matrix ``{i}.{medusa_num_layers}.weight`` ``[vocabulary, hidden]``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.drafters.tensors import PADDED, Shapes, check_shapes, find, read_config, read_shapes
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
    check_tensors(folder, path, shapes, target.hidden, target.vocabulary)


def check_tensors(folder: Path, path: Path, shapes: Shapes, hidden: int, vocabulary: int) -> tuple[int, int]:
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
    if not expected:
        raise UserError(f"{path} holds no Medusa heads: expected tensors such as 0.0.linear.weight", key="head")
    further = {name for name in shapes if (match := _TENSOR.fullmatch(name)) and int(match[1]) >= heads}
    found = {name: shape for name, shape in shapes.items() if name not in further}
    check_shapes(path, found, expected, {}, kind=f"{heads} Medusa heads of {layers} layers", source="the target")
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
