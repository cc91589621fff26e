"""Medusa heads in their official checkpoint format (Cai et al. 2024, arXiv 2401.10774).

A folder with ``config.json`` and ``medusa_lm_head.safetensors`` or ``medusa_lm_head.pt``. Head ``i`` has
``medusa_num_layers`` residual blocks, ``{i}.{j}.linear.weight`` ``[hidden, hidden]`` and ``{i}.{j}.linear.bias``
``[hidden]``, and an output matrix ``{i}.{medusa_num_layers}.weight`` ``[vocabulary, hidden]``.
"""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from ianvs_specdec.drafters.tensors import find, read_config, read_tensors
from ianvs_specdec.errors import UserError

WHAT = "Medusa heads"
FILES = ("medusa_lm_head.safetensors", "medusa_lm_head.pt")

_TENSOR = re.compile(r"(\d+)\.(\d+)\.(linear\.weight|linear\.bias|weight)")


class MedusaHeads:
    """All heads at once: head ``i`` (from 0) predicts the token ``2 + i`` positions after the one whose last hidden
    state it is given; the target's own output matrix predicts the one in between."""

    def __init__(self, blocks: list[tuple[Tensor, Tensor]], out: Tensor) -> None:
        """``blocks``: per layer weights ``[heads, in, out]`` and biases ``[heads, 1, out]``; ``out``: ``[heads,
        hidden, vocabulary]``. Input dimension first: that is what a batched product of single rows reads fastest."""
        self._blocks = blocks
        self._out = out

    def __len__(self) -> int:
        return len(self._out)

    def __call__(self, hidden: Tensor, heads: int) -> Tensor:
        """Logits ``[heads, vocabulary]`` of the first ``heads`` heads for one hidden state ``[hidden]``, taken after
        the target's final norm."""
        x = hidden.to(self._out.dtype).expand(heads, 1, -1)
        for weight, bias in self._blocks:
            x = x + functional.silu(torch.baddbmm(bias[:heads], x, weight[:heads]))
        return torch.bmm(x, self._out[:heads])[:, 0]

    @classmethod
    def load(cls, folder: Path, hidden: int, vocabulary: int, dtype: torch.dtype, device: torch.device) -> MedusaHeads:
        """Read a checkpoint for a target of this ``hidden`` size and ``vocabulary``.

        The number of heads is the configuration's ``medusa_num_heads``, or all there are. Raises ``UserError`` naming
        the file and the tensor that is missing, unknown or of the wrong shape.
        """
        path = find(folder, FILES, WHAT)
        tensors = read_tensors(path, WHAT)
        config = _config(folder)
        stored = {int(match[1]) for name in tensors if (match := _TENSOR.fullmatch(name))}
        heads = config.get("medusa_num_heads", len(stored))
        layers = config.get("medusa_num_layers", 1)
        shapes: dict[str, tuple[int, ...]] = {}
        for head in range(heads):
            for layer in range(layers):
                shapes[f"{head}.{layer}.linear.weight"] = (hidden, hidden)
                shapes[f"{head}.{layer}.linear.bias"] = (hidden,)
            shapes[f"{head}.{layers}.weight"] = (vocabulary, hidden)
        _check(path, tensors, shapes, heads, layers)

        def stack(name: str) -> Tensor:
            return torch.stack([tensors[f"{head}.{name}"] for head in range(heads)]).to(device, dtype)

        blocks = [
            (stack(f"{layer}.linear.weight").mT.contiguous(), stack(f"{layer}.linear.bias")[:, None])
            for layer in range(layers)
        ]
        return cls(blocks, stack(f"{layers}.weight").mT.contiguous())


def _config(folder: Path) -> dict[str, int]:
    path, config = folder / "config.json", read_config(folder, WHAT)
    found: dict[str, int] = {}
    for key, least in (("medusa_num_heads", 1), ("medusa_num_layers", 0)):
        value = config.get(key)
        if value is None:
            continue
        if type(value) is not int or value < least:
            raise UserError(f"{path}: {key} must be a whole number from {least}, not {value!r}", key="head")
        found[key] = value
    return found


def _check(path: Path, tensors: dict[str, Tensor], shapes: dict[str, tuple[int, ...]], heads: int, layers: int) -> None:
    says = f"for {heads} heads of {layers} layers"
    if not shapes:
        raise UserError(f"{path} holds no Medusa heads: expected tensors such as 0.0.linear.weight", key="head")
    for name, shape in shapes.items():
        if name not in tensors:
            raise UserError(f"{path} lacks the tensor {name}, expected {list(shape)} {says}", key="head")
        if tuple(tensors[name].shape) != shape:
            raise UserError(
                f"{path}: tensor {name} has shape {list(tensors[name].shape)}, the target needs {list(shape)}",
                key="head",
            )
    for name in tensors:
        match = _TENSOR.fullmatch(name)
        further_head = match is not None and int(match[1]) >= heads
        if name not in shapes and not further_head:
            raise UserError(f"{path} holds the tensor {name}, which is unknown {says} (config.json)", key="head")
