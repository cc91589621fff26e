"""Hidden states in messages: little-endian rows in one of the formats of ``split.proto``."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ianvs_specdec.net.split.split_pb2 import BFLOAT16, INT8, States

LARGEST = 127
SCALE_BYTES = 4


def row_bytes(hidden: int, states: States) -> int:
    """Bytes of a row of ``hidden`` numbers."""
    return SCALE_BYTES + hidden if states == INT8 else hidden * (2 if states == BFLOAT16 else 4)


def packed(rows: Tensor, states: States) -> bytes:
    """Float32 ``rows [rows, hidden]``. Only FLOAT32 keeps all their bits."""
    if states == BFLOAT16:
        return _bytes(rows.bfloat16().view(torch.int16))
    if states == INT8:
        scales = rows.abs().amax(dim=1, keepdim=True) / LARGEST
        return _bytes(scales) + _bytes((rows / scales.clamp_min(torch.finfo(rows.dtype).tiny)).round().char())
    return _bytes(rows)


def unpacked(data: bytes, hidden: int, states: States) -> Tensor:
    """Float32 ``[rows, hidden]``. Raises ``ValueError`` where ``data`` is no whole number of rows."""
    count, rest = divmod(len(data), row_bytes(hidden, states))
    if rest:
        raise ValueError(f"{len(data)} bytes are no whole number of hidden states of {hidden} numbers")
    if states == BFLOAT16:
        return torch.from_numpy(np.frombuffer(data, "<i2").copy()).view(torch.bfloat16).float().view(count, hidden)
    if states == INT8:
        scales = np.frombuffer(data, "<f4", count)
        return torch.from_numpy(
            scales[:, None] * np.frombuffer(data, np.int8, offset=SCALE_BYTES * count).reshape(count, hidden)
        )
    return torch.from_numpy(np.frombuffer(data, "<f4").copy()).view(count, hidden)


def _bytes(tensor: Tensor) -> bytes:
    data: bytes = tensor.contiguous().numpy().tobytes()
    return data
