"""A request whose prompt is scored: how likely each of its tokens was behind those before it."""

from __future__ import annotations

import torch
from torch import Tensor

from ianvs_specdec.engine.contracts import Output, Prompt
from ianvs_specdec.engine.request import Request
from ianvs_specdec.engine.tree import TokenTree

ROWS = 64
"""Tokens of the prompt in one step: each has logits over the whole vocabulary."""


class Scored(Request):
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
        reach = self.sequence.reach
        end = 1 if done == 0 else ROWS if reach is None else min(ROWS, reach - done)
        piece, self.unread = self.unread[:end], self.unread[end:]
        self.piece = Prompt(piece) if done == 0 else TokenTree.chain(piece[0], piece[1:])

    def accept(self, output: Output) -> None:
        if self.began:
            super().accept(output)
            return
        if isinstance(self.piece, TokenTree):
            self.sequence.commit(range(len(self.piece)))
        self._features.append(output.hidden)
        tokens, end = self.context.tokens, len(self.context.tokens) - len(self.unread)
        following = tokens[end - len(self.piece.tokens) + 1 : end + 1]
        if self._confidence is not None and following:
            self._confidence.add(output.logits[: len(following)], following)
        if not self.unread:
            hidden = tuple(map(torch.cat, zip(*self._features, strict=True)))
            self._begin(Output(output.logits[-1:], hidden))
