"""Requests that only read a prompt: scores of its tokens, or its pooled hidden states."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ianvs_specdec.common.types import POOLING
from ianvs_specdec.engine.contracts import Context, Drafter, Output, PromptChunk, Target
from ianvs_specdec.engine.request import Request
from ianvs_specdec.engine.tree import TokenTree

ROWS = 64
"""Tokens of the prompt in one step: each has logits over the whole vocabulary."""


class ScoredPrompt(Request):
    """Its prompt, behind the first token, is computed as trees of one branch, since of a tree a target has the logits
    of all nodes, and is kept whole. ``Trace.confidence`` begins with the prompt's second token."""

    def open(self) -> None:
        super().open()
        self._rooted = False
        self.unread = self.context.tokens[:]
        self._scored = len(self.unread) - 1
        self._features: list[tuple[Tensor, ...]] = []

    def read(self) -> None:
        done = len(self.context.tokens) - len(self.unread)
        reach = self.sequence.position_limit
        end = 1 if done == 0 else ROWS if reach is None else min(ROWS, reach - done)
        piece, self.unread = self.unread[:end], self.unread[end:]
        self.step_input = PromptChunk(piece) if done == 0 else TokenTree.chain(piece[0], piece[1:])

    def accept(self, output: Output) -> None:
        if self.decoding:
            super().accept(output)
            return
        if isinstance(self.step_input, TokenTree):
            self.sequence.commit(range(len(self.step_input)))
        self._features.append(output.hidden)
        tokens, end = self.context.tokens, len(self.context.tokens) - len(self.unread)
        following = tokens[end - len(self.step_input.tokens) + 1 : end + 1]
        if self._confidence is not None and following:
            self._confidence.add(output.logits[: len(following)], following)
        if not self.unread:
            hidden = tuple(map(torch.cat, zip(*self._features, strict=True)))
            self._begin(Output(output.logits[-1:], hidden))


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
