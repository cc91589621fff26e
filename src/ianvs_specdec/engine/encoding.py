"""Pooled hidden states of a prompt, read as any other request reads its prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ianvs_specdec.common.types import POOLING
from ianvs_specdec.engine.contracts import Context, Drafter, Output, Target

_POOLS: dict[str, Callable[[Tensor], Tensor]] = {"last": lambda rows: rows[-1], "max": lambda rows: rows.amax(0)}


class PromptEncoder(Drafter):
    """For a request of one token: keeps the prompt's hidden states of ``layers`` (indices as in ``Target.open``)."""

    states: Tensor
    """After ``begin``: float32 ``[layers, 2 * hidden]`` on the CPU, pooled as ``types.POOLING`` says."""

    def __init__(self, layers: Sequence[int]) -> None:
        self._layers = tuple(layers)

    def prepare(self, target: Target) -> Sequence[int]:
        return self._layers

    def begin(self, target: Target, context: Context, prefill: Output) -> None:
        pooled = [torch.cat([_POOLS[name](rows) for name in POOLING]) for rows in prefill.hidden]
        self.states = torch.stack(pooled).float().cpu()
