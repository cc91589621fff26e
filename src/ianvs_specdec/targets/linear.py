"""Matrix products with a fixed weight.

On a CPU, oneDNN computes a product with few rows up to twice as fast if the weight is in its blocked layout. In
bfloat16 that layout replaces the weight and gives the same bits. In float32 it is a second copy, for small weights
only, since single rows are faster with the plain kernel.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

_PLAIN_ROWS = 4
_COPIED_ELEMENTS = 1 << 24


class Linear:
    """``x [rows, in] -> [rows, out]``; ``weight`` is ``[out, in]`` and must not change afterwards."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._bias = None if bias is None else bias.detach()
        self._packed = _packed(weight.detach())
        replaces = self._packed is not None and weight.dtype == torch.bfloat16
        self._plain_rows = 0 if replaces else _PLAIN_ROWS
        self._weight = weight.new_empty(0) if replaces else weight.detach()

    def __call__(self, x: Tensor) -> Tensor:
        if self._packed is None or x.shape[0] <= self._plain_rows:
            return functional.linear(x, self._weight, self._bias)
        return torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")

    def added(self, x: Tensor, residual: Tensor) -> Tensor:
        """The product plus ``residual`` ``[rows, out]``."""
        if self._packed is None or x.shape[0] <= self._plain_rows:
            return functional.linear(x, self._weight, self._bias).add_(residual)
        return torch.ops.mkldnn._linear_pointwise.binary(x, residual, self._packed, self._bias, "add")


def _packed(weight: Tensor) -> Tensor | None:
    """The weight in oneDNN's layout; None if this build or processor does not support it."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return None
    if weight.dtype != torch.bfloat16 and (weight.dtype != torch.float32 or weight.numel() > _COPIED_ELEMENTS):
        return None
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, 8)
        torch.ops.mkldnn._linear_pointwise(weight.new_zeros(1, weight.shape[1]), packed, None, "none", [], "")
    except (AttributeError, RuntimeError, TypeError):  # the operators are internal to torch and may change
        return None
    return packed
