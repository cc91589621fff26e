"""Medusa heads as they compute (Cai et al. 2024, arXiv 2401.10774)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from ianvs_specdec.drafters.medusa.layout import FILES, WHAT, check_tensors
from ianvs_specdec.drafters.tensors import find, read_tensors
from ianvs_specdec.engine import Target
from ianvs_specdec.targets.native.heads import ResidualHeads
from ianvs_specdec.targets.native.product import Product
from ianvs_specdec.targets.native.target import NativeTarget

Unembed = Callable[[Tensor], Tensor]
"""Makes logits ``[rows, vocabulary]`` of hidden states ``[rows, hidden]``."""


class Heads(ABC):
    """All heads at once: head ``i`` (from 0) predicts the token ``2 + i`` positions after the one whose last hidden
    state it is given; the target's own output matrix predicts the one in between."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __call__(self, hidden: Tensor, heads: int) -> Tensor:
        """Logits ``[rows, heads, vocabulary]`` of the first ``heads`` heads for hidden states ``[rows, hidden]``."""

    def likeliest(self, logits: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """Log-probabilities and ids ``[..., width]`` of the likeliest tokens of ``logits [..., vocabulary]``."""
        best = logits.float().log_softmax(dim=-1).topk(width, dim=-1)
        return best.values, best.indices


class MedusaHeads(Heads):
    """In torch."""

    def __init__(
        self, heads: int, blocks: list[tuple[Tensor, Tensor]], out: Tensor | Unembed, dtype: torch.dtype
    ) -> None:
        """``blocks``: per layer weights ``[heads, in, out]`` and biases ``[heads, 1, out]``; ``out``: ``[heads,
        hidden, vocabulary]``, or what makes logits of rows. Input dimension first: that is what a batched product of
        single rows reads fastest."""
        self._heads, self._blocks, self._out, self._dtype = heads, blocks, out, dtype

    def __len__(self) -> int:
        return self._heads

    def __call__(self, hidden: Tensor, heads: int) -> Tensor:
        x = hidden.to(self._dtype).expand(heads, -1, -1)
        for weight, bias in self._blocks:
            x = x + functional.silu(torch.baddbmm(bias[:heads], x, weight[:heads]))
        if isinstance(self._out, Tensor):
            return torch.bmm(x, self._out[:heads]).transpose(0, 1)
        return self._out(x.transpose(0, 1).flatten(0, 1)).unflatten(0, (-1, heads))

    @classmethod
    def load(
        cls,
        folder: Path,
        hidden: int,
        vocabulary: int,
        dtype: torch.dtype,
        device: torch.device,
        unembed: Unembed,
    ) -> MedusaHeads:
        """Read a checkpoint for a target of this ``hidden`` size and ``vocabulary``: see ``read``. ``unembed``: the
        target's output, for heads without one."""
        blocks, outputs = read(folder, hidden, vocabulary)
        heads, layers = len(blocks), len(blocks[0])

        def stack(tensors: Sequence[Tensor]) -> Tensor:
            return torch.stack(list(tensors)).to(device, dtype)

        joined = []
        for layer in range(layers):
            weights, biases = zip(*(blocks[head][layer] for head in range(heads)), strict=True)
            joined.append((stack(weights).mT.contiguous(), stack(biases)[:, None]))
        if len(outputs) == 1:
            unembed = partial(functional.linear, weight=outputs[0].to(device, dtype))
        return cls(heads, joined, stack(outputs).mT.contiguous() if len(outputs) > 1 else unembed, dtype)


class NativeMedusaHeads(ResidualHeads, Heads):
    """In the native library: what the heads say after a hidden state depends, to the bit, on nothing else."""

    def __init__(self, folder: Path, target: NativeTarget) -> None:
        vocabulary, hidden = target.embedding.shape
        blocks, outputs = read(folder, hidden, vocabulary)
        library, dtype = target.native.library, target.dtype
        products = [Product(library, output.to(dtype)) for output in outputs] or [target.unembed]
        super().__init__(
            library,
            [[Product(library, weight.to(dtype), bias.to(dtype)) for weight, bias in own] for own in blocks],
            products if len(products) > 1 else products * len(blocks),
        )
        self._target = None if outputs else target

    def __call__(self, hidden: Tensor, heads: int) -> Tensor:
        logits = super().__call__(hidden, heads)
        if self._target is not None:
            self._target.finish(logits.view(-1, logits.shape[-1]))
        return logits


def heads_for(folder: Path, target: Target) -> Heads:
    """The heads in ``folder``, fitted to ``target``: see ``read``."""
    if isinstance(target, NativeTarget):
        return NativeMedusaHeads(folder, target)
    vocabulary, hidden = target.embedding.shape
    return MedusaHeads.load(folder, hidden, vocabulary, target.dtype, target.device, target.unembed)


def read(folder: Path, hidden: int, vocabulary: int) -> tuple[list[list[tuple[Tensor, Tensor]]], list[Tensor]]:
    """Weight ``[hidden, hidden]`` and bias ``[hidden]`` of every block, per head, and the heads' output matrices
    ``[vocabulary, hidden]``: one where they share it, none where it is the target's.

    The number of heads is the configuration's, or all there are. Raises ``UserError`` naming the
    file and the tensor that is missing, unknown or of the wrong shape.
    """
    path = find(folder, FILES, WHAT)
    tensors = read_tensors(path, WHAT)
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    layout = check_tensors(folder, path, shapes, hidden, vocabulary)
    blocks = []
    for head in range(layout.heads):
        names = [layout.block(head, layer) for layer in range(layout.layers)]
        none = torch.zeros(hidden)
        blocks.append([(tensors[f"{name}.weight"], tensors.get(f"{name}.bias", none)) for name in names])
    outputs = dict.fromkeys(layout.output(head) for head in range(layout.heads if layout.outputs else 0))
    return blocks, [tensors[name] for name in outputs]
