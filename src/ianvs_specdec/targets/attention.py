"""Selection of torch's attention kernels."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Kernels without a plan per shape. torch prefers cuDNN's kernel on some GPUs, which makes a plan for every number of
keys and rows: on an H100, steps of an 8B model took about 50 ms with a new plan, else 8 to 12 ms."""


def any_length(device: torch.device) -> AbstractContextManager[None]:
    """Restrict attention on ``device`` to ``KERNELS``. Context manager, without effect on a CPU."""
    return sdpa_kernel(KERNELS) if device.type == "cuda" else nullcontext()
