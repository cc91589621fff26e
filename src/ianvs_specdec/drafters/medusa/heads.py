"""Computation of Medusa heads (Cai et al. 2024, arXiv 2401.10774)."""

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
"""Computes logits ``[rows, vocabulary]`` of hidden states ``[rows, hidden]``."""

StepPart = tuple[Tensor, int]
"""A hidden state ``[hidden]`` of the target, and the number of heads."""


class Heads(ABC):
    """All heads at once: head ``i`` (from 0) predicts the token ``2 + i`` positions after the one whose last hidden
    state it reads; the target's own output matrix predicts the one in between."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __call__(self, hidden: Tensor, heads: int) -> Tensor:
        """Logits ``[rows, heads, vocabulary]`` of the first ``heads`` heads for hidden states ``[rows, hidden]``."""

    def step(self, parts: Sequence[StepPart]) -> list[Tensor]:
        """Logits ``[heads, vocabulary]`` of each part."""
        logits = self(torch.stack([hidden for hidden, _ in parts]), max(heads for _, heads in parts))
        return [own[:heads] for own, (_, heads) in zip(logits, parts, strict=True)]

    def likeliest(self, logits: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """Log-probabilities and ids ``[..., width]`` of the likeliest tokens of ``logits [..., vocabulary]``."""
        best = logits.float().log_softmax(dim=-1).topk(width, dim=-1)
        return best.values, best.indices


class MedusaHeads(Heads):
    """In torch. Raises ``UserError``: see ``read``."""

    def __init__(self, folder: Path, target: Target) -> None:
        vocabulary, hidden = target.embedding.shape
        blocks, outputs = read(folder, hidden, vocabulary)
        self._heads, self._dtype = len(blocks), target.dtype

        def stack(tensors: Sequence[Tensor]) -> Tensor:
            return torch.stack(list(tensors)).to(target.device, target.dtype)

        # The input dimension comes first, which is the fastest for a batched product of single rows.
        self._blocks: list[tuple[Tensor, Tensor]] = []
        for layer in zip(*blocks, strict=True):
            weights, biases = zip(*layer, strict=True)
            self._blocks.append((stack(weights).mT.contiguous(), stack(biases)[:, None]))
        self._out: Tensor | Unembed = target.unembed
        if len(outputs) == 1:
            self._out = partial(functional.linear, weight=outputs[0].to(target.device, target.dtype))
        elif outputs:
            self._out = stack(outputs).mT.contiguous()

    def __len__(self) -> int:
        return self._heads

    def __call__(self, hidden: Tensor, heads: int) -> Tensor:
        x = hidden.to(self._dtype).expand(heads, -1, -1)
        for weight, bias in self._blocks:
            x = x + functional.silu(torch.baddbmm(bias[:heads], x, weight[:heads]))
        if isinstance(self._out, Tensor):
            return torch.bmm(x, self._out[:heads]).transpose(0, 1)
        return self._out(x.transpose(0, 1).flatten(0, 1)).unflatten(0, (-1, heads))


class NativeMedusaHeads(ResidualHeads, Heads):
    """In the native library: the logits of a hidden state do not depend, to the bit, on anything else."""

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
    return NativeMedusaHeads(folder, target) if isinstance(target, NativeTarget) else MedusaHeads(folder, target)


def read(folder: Path, hidden: int, vocabulary: int) -> tuple[list[list[tuple[Tensor, Tensor]]], list[Tensor]]:
    """Weight ``[hidden, hidden]`` and bias ``[hidden]`` of every block, per head, and the heads' output matrices
    ``[vocabulary, hidden]``: one if shared, none if it is the target's.

    The number of heads is the configuration's, or all. Raises ``UserError`` naming the file and the tensor that is
    missing, unknown or of the wrong shape.
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
