"""Matrix products with a fixed weight, as fast as the device has them.

On a CPU, oneDNN computes a product with few rows up to twice as fast when the weight lies in its blocked layout, which
costs a second copy. In bfloat16 the results are the same to the bit; in float32 single rows stay with the plain kernel,
which is faster there.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

PACKED_BYTES = 1 << 30
"""Models with larger weights are not copied: their products are bound by memory, not by layout."""

_PLAIN_ROWS = 4


class Linear:
    """``x [rows, in] -> [rows, out]``; ``weight`` is ``[out, in]`` and must not change afterwards."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None, *, pack: bool = True) -> None:
        self.weight, self.bias = weight, bias
        self._packed = _packed(weight) if pack else None
        self._plain_rows = 0 if weight.dtype == torch.bfloat16 else _PLAIN_ROWS

    def __call__(self, x: Tensor) -> Tensor:
        if self._packed is None or x.shape[0] <= self._plain_rows:
            return functional.linear(x, self.weight, self.bias)
        return torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")

    def added(self, x: Tensor, residual: Tensor) -> Tensor:
        """The product plus ``residual`` ``[rows, out]``."""
        if self._packed is None or x.shape[0] <= self._plain_rows:
            return functional.linear(x, self.weight, self.bias).add_(residual)
        return torch.ops.mkldnn._linear_pointwise.binary(x, residual, self._packed, self.bias, "add")


def _packed(weight: Tensor) -> Tensor | None:
    """The weight in oneDNN's layout; None where this build or processor has no use for it."""
    if weight.device.type != "cpu" or weight.dtype not in (torch.float32, torch.bfloat16):
        return None
    if not torch.backends.mkldnn.is_available():
        return None
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), 8)
        torch.ops.mkldnn._linear_pointwise(weight.new_zeros(1, weight.shape[1]), packed, None, "none", [], "")
    except (AttributeError, RuntimeError, TypeError):  # the operators are internal to torch and may change
        return None
    return packed
