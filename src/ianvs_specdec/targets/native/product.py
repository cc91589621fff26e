"""Matrix products with a fixed weight in the native library."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from ianvs_specdec.targets.native import interface


class Product:
    """``x [rows, in] -> [rows, out]`` in float32, for ``weight [out, in]`` of type float32, bfloat16 or float16.

    The weight is copied, and rounded where ``quantization`` says so: see ``csrc/products.h``. A row of the result has
    the same bits whatever rows are beside it.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        weight: Tensor,
        bias: Tensor | None = None,
        quantization: str | None = None,
    ) -> None:
        weight = weight.detach().contiguous()
        bias = None if bias is None else bias.detach().float().contiguous()
        source = interface.KINDS[weight.dtype]
        kind = source if quantization is None else interface.QUANTIZED[quantization]
        self.out, self.inputs = weight.shape
        where = None if bias is None else bias.data_ptr()
        self.pointer = library.specdec_product_new(kind, source, weight.data_ptr(), self.out, self.inputs, where)
        if not self.pointer:
            raise MemoryError(f"not enough memory for a weight of {self.out} x {self.inputs}")
        interface.freed(self, library.specdec_product_free, self.pointer)
        self.library_bytes: int = library.specdec_product_bytes(self.pointer)
        self._run = library.specdec_product_run

    def __call__(self, x: Tensor) -> Tensor:
        return self._into(x, torch.empty(x.shape[0], self.out), add=False)

    def added(self, x: Tensor, residual: Tensor) -> Tensor:
        """The product plus ``residual`` ``[rows, out]``."""
        return self._into(x, residual.to(torch.float32, copy=True).contiguous(), add=True)

    def _into(self, x: Tensor, y: Tensor, *, add: bool) -> Tensor:
        x = x.to(torch.float32).contiguous()
        if x.ndim != 2 or x.shape[1] != self.inputs or y.shape != (x.shape[0], self.out):
            raise ValueError(f"a product of {self.inputs} inputs was given rows of shape {tuple(x.shape)}")
        if len(x):
            threads = torch.get_num_threads()
            interface.check(
                self._run(self.pointer, x.data_ptr(), self.inputs, len(x), y.data_ptr(), self.out, int(add), threads)
            )
        return y
