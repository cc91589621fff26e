"""Which of torch's kernels compute attention."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Those that take every number of keys at once. cuDNN's makes a plan for each, and torch prefers it on some cards: on
an H100 a step of an 8B model took 55 ms where the number of keys was new, as it is in nearly every step, and 8 ms where
it was not."""


def any_length(device: torch.device) -> AbstractContextManager[None]:
    """Within it, attention on ``device`` is computed by ``KERNELS``. On a CPU there are no others."""
    return sdpa_kernel(KERNELS) if device.type == "cuda" else nullcontext()
