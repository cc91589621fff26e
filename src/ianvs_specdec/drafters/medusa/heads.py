"""Medusa heads as they compute (Cai et al. 2024, arXiv 2401.10774)."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from ianvs_specdec.drafters.medusa.layout import FILES, WHAT, check_shapes
from ianvs_specdec.drafters.tensors import find, read_tensors


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
        """Logits ``[rows, heads, vocabulary]`` of the first ``heads`` heads for hidden states ``[rows, hidden]``, taken
        after the target's final norm."""
        x = hidden.to(self._out.dtype).expand(heads, -1, -1)
        for weight, bias in self._blocks:
            x = x + functional.silu(torch.baddbmm(bias[:heads], x, weight[:heads]))
        return torch.bmm(x, self._out[:heads]).transpose(0, 1)

    @classmethod
    def load(cls, folder: Path, hidden: int, vocabulary: int, dtype: torch.dtype, device: torch.device) -> MedusaHeads:
        """Read a checkpoint for a target of this ``hidden`` size and ``vocabulary``.

        The number of heads is the configuration's ``medusa_num_heads``, or all there are. Raises ``UserError`` naming
        the file and the tensor that is missing, unknown or of the wrong shape.
        """
        path = find(folder, FILES, WHAT)
        tensors = read_tensors(path, WHAT)
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        heads, layers = check_shapes(folder, path, shapes, hidden, vocabulary)

        def stack(name: str) -> Tensor:
            return torch.stack([tensors[f"{head}.{name}"] for head in range(heads)]).to(device, dtype)

        blocks = [
            (stack(f"{layer}.linear.weight").mT.contiguous(), stack(f"{layer}.linear.bias")[:, None])
            for layer in range(layers)
        ]
        return cls(blocks, stack(f"{layers}.weight").mT.contiguous())
