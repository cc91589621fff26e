"""Weights in 4 bits where the native step does not compute: rounded as it rounds them, then used as numbers of the
model's own type.

That saves neither time nor memory; it lets the same model run everywhere. A group of 32 inputs has one scale, as in
llama.cpp's q4_0, and integers from -8 to 7. Scales about that with which the largest number becomes -8 are tried; the
one that leaves the least error is kept. The output embedding stays as it is.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ianvs_specdec.targets.linear import Linear

GROUP = 32
"""Inputs with one scale."""
LEAST, MOST = -8, 7
_TRIES, _STEP = 4, 0.2
"""Scales on either side, and how far apart they are, in integers."""


def rounded(weight: Tensor) -> Tensor:
    """``weight [out, in]``, each number the nearest that its group's scale permits, in its own dtype."""
    out, width = weight.shape
    groups = functional.pad(weight.detach().float(), (0, -width % GROUP)).view(out, -1, GROUP)
    scale = _scale(groups)
    inverse = torch.where(scale == 0, 0, 1 / scale)
    whole = (groups * inverse).round_().clamp_(LEAST, MOST)
    return (whole * scale).view(out, -1)[:, :width].to(weight.dtype)


def _scale(groups: Tensor) -> Tensor:
    """``[out, groups, 1]`` for ``groups [out, groups, GROUP]``; 0 where all numbers are."""
    farthest = groups.gather(2, groups.abs().argmax(dim=2, keepdim=True))
    best, scale = torch.zeros_like(farthest), torch.zeros_like(farthest)
    for attempt in range(-_TRIES, _TRIES + 1):
        factor = torch.where(farthest == 0, 0, (LEAST - attempt * _STEP) / farthest)
        whole = (groups * factor).round_().clamp_(LEAST, MOST)
        # With these integers, product / square is the scale of the least squares, and product ** 2 / square the part of
        # the group's squares that it explains.
        product, square = (whole * groups).sum(2, keepdim=True), (whole * whole).sum(2, keepdim=True)
        fitted = torch.where(square == 0, 0, product / square)
        better = fitted * product > best
        best, scale = torch.where(better, fitted * product, best), torch.where(better, fitted, scale)
    return scale.to(torch.bfloat16).float()


class Int4Linear(Linear):
    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__(rounded(weight), bias)


def quantize(model: Any) -> None:
    """Round the weights of every ``torch.nn.Linear`` of the model in place, but not the output embedding's."""
    head = model.get_output_embeddings()
    for module in model.modules():
        if type(module) is torch.nn.Linear and module is not head:
            module.weight = torch.nn.Parameter(rounded(module.weight), requires_grad=False)
