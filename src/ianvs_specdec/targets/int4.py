"""4-bit weights without the native step: rounded in the same way, but stored in the model's dtype.

This saves neither time nor memory, but runs the same model everywhere. A group of 32 inputs has one scale, as in
llama.cpp's q4_0, and integers from -8 to 7. Of several scales near the one that maps the largest number to -8, the one
with the least error is used. The output embedding is not rounded.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ianvs_specdec.targets.linear import Linear

GROUP = 32
"""Inputs per scale."""
LEAST, MOST = -8, 7
_TRIES, _STEP = 4, 0.2
"""Number of scales tried on either side, and their distance in integers."""


def rounded(weight: Tensor) -> Tensor:
    """``weight [out, in]``, rounded to integers times the scale of their group, in its own dtype."""
    out, width = weight.shape
    groups = functional.pad(weight.detach().float(), (0, -width % GROUP)).view(out, -1, GROUP)
    scale = _scale(groups)
    inverse = torch.where(scale == 0, 0, 1 / scale)
    whole = (groups * inverse).round_().clamp_(LEAST, MOST)
    return (whole * scale).view(out, -1)[:, :width].to(weight.dtype)


def _scale(groups: Tensor) -> Tensor:
    """Scales ``[out, groups, 1]`` of ``groups [out, groups, GROUP]``; 0 if all numbers are 0."""
    farthest = groups.gather(2, groups.abs().argmax(dim=2, keepdim=True))
    best, scale = torch.zeros_like(farthest), torch.zeros_like(farthest)
    for attempt in range(-_TRIES, _TRIES + 1):
        factor = torch.where(farthest == 0, 0, (LEAST - attempt * _STEP) / farthest)
        whole = (groups * factor).round_().clamp_(LEAST, MOST)
        # For these integers, product / square is the least-squares scale, and product ** 2 / square the explained part
        # of the sum of squares.
        product, square = (whole * groups).sum(2, keepdim=True), (whole * whole).sum(2, keepdim=True)
        fitted = torch.where(square == 0, 0, product / square)
        better = fitted * product > best
        best, scale = torch.where(better, fitted * product, best), torch.where(better, fitted, scale)
    return scale.to(torch.bfloat16).float()


class Int4Linear(Linear):
    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__(rounded(weight), bias)


def quantize(model: Any) -> None:
    """Round the weights of every ``torch.nn.Linear`` in place, except the output embedding."""
    head = model.get_output_embeddings()
    for module in model.modules():
        if type(module) is torch.nn.Linear and module is not head:
            module.weight = torch.nn.Parameter(rounded(module.weight), requires_grad=False)
