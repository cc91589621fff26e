"""Rounding differences of a logit between a token computed with others and alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

NEAR_TIE = {torch.float64: 1e-3, torch.float32: 1e-3, torch.float16: 0.1, torch.bfloat16: 0.5}
"""In logits, by the dtype of the weights: two that lie closer may change places by rounding.

Logits of models of up to 28 layers were computed token by token and in one step: they differed by 6e-6 in float32, 0.04
in float16 and 0.25 in bfloat16 at the most. Each limit is at least twice that, since both logits move."""

NEAR_TIE_INT8 = 1.5
"""The same for weights in 8-bit integers, where 0.68 was seen: a last bit of the attention may move an activation to
the next integer."""


@torch.inference_mode()
def near_ties(model: Any, prompt: Sequence[int], output: Sequence[int]) -> set[int]:
    """The positions of an ``output`` where the two best tokens of a causal LM of transformers lie closer than that."""
    ids = torch.tensor([[*prompt, *output]], device=model.device)
    best = model(ids, use_cache=False, logits_to_keep=len(output) + 1).logits[0, :-1].float().topk(2).values
    return set((best[:, 0] - best[:, 1] < NEAR_TIE[model.dtype]).nonzero().flatten().tolist())
