"""Matrix products in 8-bit integers: weights with one scale per output, activations rounded at run time per row.

This is the vector-wise quantization of LLM.int8() without outliers (Dettmers et al. 2022, arXiv 2208.07339). Each row
is rounded alone and sums of integers are exact, so a row of a product does not depend on other rows. But the last bits
of attention depend on the number of tokens and may change an activation's integer, so drafts can change the output if
two tokens are close (see ``rounding.NEAR_TIE_INT8``).

Processors without VNNI may add pairs of products in 16 bits, which overflows with 8-bit weights: there weights have 7
bits.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

MAX_INT8 = 127
MAX_INT8_WITHOUT_VNNI = 64
"""Maximum of a weight: two products with unsigned activations, 2 * 255 * 64, stay below 2 ** 15."""
_PACKED_FROM = 1 << 20
"""Minimum elements for which oneDNN's blocked layout is faster than the plain kernel."""


class Int8Linear:
    """``x [rows, in] -> [rows, out]``; ``weight [out, in]`` is rounded to integers."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        weight = weight.detach().float()
        packs = weight.numel() >= _PACKED_FROM
        largest = MAX_INT8 if _sums_are_exact(packs) else MAX_INT8_WITHOUT_VNNI
        self._scale = weight.abs().amax(dim=1).clamp_(min=torch.finfo(torch.float32).tiny) / largest
        whole = (weight / self._scale[:, None]).round_().to(torch.int8)
        self._bias = None if bias is None else bias.detach().float()
        self._packed = _packed(whole, self._scale) if packs else None
        self._weight = whole.t() if self._packed is None else whole.new_empty(0)

    def __call__(self, x: Tensor) -> Tensor:
        return self._product(x).to(x.dtype)

    def added(self, x: Tensor, residual: Tensor) -> Tensor:
        """The product plus ``residual`` ``[rows, out]``."""
        return self._product(x).add_(residual).to(x.dtype)

    def _product(self, x: Tensor) -> Tensor:
        x = x.float()
        steps = torch.linalg.vector_norm(x, torch.inf, -1, True).clamp_(min=1e-30).div_(MAX_INT8)
        whole = (x / steps).round_()
        if self._packed is None:
            product = torch._int_mm(whole.to(torch.int8), self._weight).float().mul_(self._scale)
        else:
            product = _packed_product(whole, self._packed, self._scale)
        product.mul_(steps)
        return product if self._bias is None else product.add_(self._bias)


class Int8Module(torch.nn.Module):
    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.product = Int8Linear(linear.weight, linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x.reshape(-1, self.in_features)).view(*x.shape[:-1], self.out_features)


def quantize(model: Any) -> None:
    """Replace every ``torch.nn.Linear`` of the model, including the output embedding, by 8-bit integers."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is torch.nn.Linear:
                setattr(parent, name, Int8Module(child))


def available(device: torch.device) -> bool:
    return device.type == "cpu" and hasattr(torch, "_int_mm")


# oneDNN is fastest with unsigned activations: integers from -127 to 127 are shifted by this.
_ZERO = 128


def _packed(whole: Tensor, scale: Tensor) -> Tensor | None:
    """``whole [out, in]`` in oneDNN's layout; None if this build or processor does not support it."""
    if not torch.backends.mkldnn.is_available():
        return None
    try:
        packed: Tensor = torch.ops.onednn.qlinear_prepack(whole, None)
        _packed_product(torch.zeros(1, whole.shape[1]), packed, scale)
    except (AttributeError, RuntimeError, TypeError):  # the operators are internal to torch and may change
        return None
    return packed


def _packed_product(whole: Tensor, packed: Tensor, scale: Tensor) -> Tensor:
    shifted = (whole + _ZERO).to(torch.uint8)
    zeros = torch.zeros(len(scale), dtype=torch.int64)
    product: Tensor = torch.ops.onednn.qlinear_pointwise(
        shifted, 1.0, _ZERO, packed, scale, zeros, None, 1.0, 0, torch.float32, "none", [], ""
    )
    return product


@functools.cache
def _sums_are_exact(packs: bool) -> bool:
    """Whether sums of products of the largest integers are exact. Without VNNI the two kernels may differ."""
    inner = 64
    most = torch.full((8, inner), MAX_INT8, dtype=torch.int8)
    scale = torch.ones(len(most))
    packed = _packed(most, scale) if packs else None
    sums = torch._int_mm(most, most.t()) if packed is None else _packed_product(most.float(), packed, scale)
    return int(sums[0, 0]) == inner * MAX_INT8**2
