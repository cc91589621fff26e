"""Which of torch's kernels compute attention."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Those that take every number of keys at once. cuDNN's makes a plan for each, with each number of rows, and torch
prefers it on some cards. On an H100 most steps of an 8B model's shape that needed a plan took about 50 ms, others 8 to
12. Drafts of changing lengths need the most plans."""


def any_length(device: torch.device) -> AbstractContextManager[None]:
    """Within it, attention on ``device`` is computed by ``KERNELS``. On a CPU there are no others."""
    return sdpa_kernel(KERNELS) if device.type == "cuda" else nullcontext()
