"""Rounding differences of logits between a token computed alone and with others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

NEAR_TIE = {torch.float64: 1e-3, torch.float32: 1e-3, torch.float16: 0.1, torch.bfloat16: 0.5}
"""Difference of two logits below which rounding may change their order, by the dtype of the weights.

In models of up to 28 layers, logits computed token by token and in one step differed by at most 6e-6 in float32, 0.04
in float16 and 0.25 in bfloat16. Each limit is at least twice that, since both logits may move.
"""

NEAR_TIE_INT8 = 1.5
"""The same for 8-bit integer weights, where differences of 0.68 occurred: a last bit of the attention may move an
activation to the next integer."""


@torch.inference_mode()
def near_ties(model: Any, prompt: Sequence[int], output: Sequence[int]) -> set[int]:
    """The positions of an ``output`` at which the two best tokens of a transformers causal LM are closer than
    ``NEAR_TIE``."""
    ids = torch.tensor([[*prompt, *output]], device=model.device)
    best = model(ids, use_cache=False, logits_to_keep=len(output) + 1).logits[0, :-1].float().topk(2).values
    return set((best[:, 0] - best[:, 1] < NEAR_TIE[model.dtype]).nonzero().flatten().tolist())
