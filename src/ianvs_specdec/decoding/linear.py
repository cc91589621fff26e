"""Matrix products with a fixed weight, as fast as the device has them.

In bfloat16 on a CPU, oneDNN computes a product with few rows up to twice as fast when the weight lies in its blocked
layout, with the same results to the bit. The layout replaces the weight. In float32 the plain kernel is as fast.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


class Linear:
    """``x [rows, in] -> [rows, out]``; ``weight`` is ``[out, in]`` and must not change afterwards."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._bias = None if bias is None else bias.detach()
        self._packed = _packed(weight.detach())
        self._weight = weight.detach() if self._packed is None else weight.new_empty(0)

    @property
    def memory(self) -> int:
        """Bytes held."""
        held = (self._weight, self._packed, self._bias)
        return sum(part.numel() * part.element_size() for part in held if part is not None)

    def __call__(self, x: Tensor) -> Tensor:
        if self._packed is None:
            return functional.linear(x, self._weight, self._bias)
        return torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")

    def added(self, x: Tensor, residual: Tensor) -> Tensor:
        """The product plus ``residual`` ``[rows, out]``."""
        if self._packed is None:
            return functional.linear(x, self._weight, self._bias).add_(residual)
        return torch.ops.mkldnn._linear_pointwise.binary(x, residual, self._packed, self._bias, "add")


def _packed(weight: Tensor) -> Tensor | None:
    """The weight in oneDNN's layout; None where this build or processor has no use for it."""
    if weight.device.type != "cpu" or weight.dtype != torch.bfloat16 or not torch.backends.mkldnn.is_available():
        return None
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, 8)
        torch.ops.mkldnn._linear_pointwise(weight.new_zeros(1, weight.shape[1]), packed, None, "none", [], "")
    except (AttributeError, RuntimeError, TypeError):  # the operators are internal to torch and may change
        return None
    return packed
