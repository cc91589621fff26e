"""The state of one sequence in the fast path, and its share of a step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ianvs_specdec.engine.contracts import PromptChunk, StepInput
from ianvs_specdec.engine.tree import TokenTree

_FIRST_CAPACITY = 512
_UNITS = ((8, 1), (64, 8), (256, 32), (math.inf, 128))
"""Up to how many rows which multiple is computed: a tenth more than is needed, or little in all."""


def capacity_for(positions: int) -> int:
    """How many positions are reserved when ``positions`` are needed: so many that growing them copies little."""
    return max(_FIRST_CAPACITY, 2 * positions)


class FusedSequence:
    """Keys and values of all layers in one tensor ``cache [layers, 2 * key heads, capacity, width]``.

    ``features`` are indices of layer inputs, 0 to the number of layers.
    """

    def __init__(self, cache: Tensor, features: tuple[int, ...], window: int | None) -> None:
        self.cache, self.features, self.position_limit = cache, features, window
        self.length = 0

    def computed(self, piece: StepInput) -> None:
        """``piece`` was written behind what is kept."""
        if isinstance(piece, PromptChunk):
            self.length += len(piece.tokens)

    @torch.inference_mode()
    def commit(self, path: Sequence[int]) -> None:
        start, end = self.length, self.length + len(path)
        if path[-1] != len(path) - 1:
            index = torch.tensor(path, device=self.cache.device) + start
            self.cache[:, :, start:end] = self.cache.index_select(2, index)
        self.length = end

    def snapshot(self) -> int:
        return self.length

    def restore(self, snapshot: int) -> None:
        self.length = snapshot

    def close(self) -> None:
        self.cache = self.cache.new_empty(0)

    def reserve(self, positions: int) -> None:
        layers, heads, capacity, width = self.cache.shape
        if positions <= capacity:
            return
        cache = self.cache.new_empty(layers, heads, capacity_for(positions), width)
        cache[:, :, : self.length] = self.cache[:, :, : self.length]
        self.cache = cache


@dataclass
class Views:
    """By layer: where keys and values are written, and those to attend to. Who may see whom: the rows of the mask are
    those of all query heads that share keys, one head after another."""

    slots: Sequence[Tensor]
    keys: Sequence[Tensor]
    values: Sequence[Tensor]
    mask: Tensor | None
    causal: bool


@dataclass
class Rows:
    sequence: FusedSequence
    piece: StepInput
    tokens: Tensor
    end: int

    @classmethod
    def of(cls, sequence: FusedSequence, piece: StepInput) -> Rows:
        """Makes room for them in the sequence."""
        end = sequence.length + len(piece.tokens)
        sequence.reserve(end)
        return cls(sequence, piece, torch.tensor(piece.tokens, device=sequence.cache.device), end)

    def angles(self, angles: Tensor) -> Tensor:
        """The rows' own of all ``angles [positions, width / 2]``."""
        start = self.sequence.length
        if isinstance(self.piece, PromptChunk) or self.piece.is_chain:
            return angles[start : self.end]
        return angles[torch.tensor(self.piece.depths, device=angles.device) + start]

    def views(self, query_heads: int, key_heads: int) -> Views:
        cache, start = self.sequence.cache, self.sequence.length
        keys, values = (part.unbind() for part in cache[:, None, :, : self.end].split(key_heads, dim=2))
        rows = len(self.tokens)
        causal = rows > 1 and start == 0 and isinstance(self.piece, PromptChunk)
        mask = None if causal or rows == 1 else self._mask(rows).repeat(query_heads // key_heads, 1)
        return Views(cache[:, :, start : self.end].unbind(), keys, values, mask, causal)

    def wanted(self, end: int) -> range:
        """The rows of the step whose logits are asked for; this sequence's last one is ``end - 1``."""
        if isinstance(self.piece, TokenTree):
            return range(end - len(self.tokens), end)
        return range(end - 1, end) if self.piece.last else range(0)

    def _mask(self, rows: int) -> Tensor:
        """``[rows, positions]`` to be added to attention scores: nothing where a row may look."""
        start, like = self.sequence.length, self.sequence.cache
        mask = like.new_zeros(rows, self.end)
        if isinstance(self.piece, TokenTree):
            visible = self.piece.mask(like.device)
        else:
            visible = torch.ones(rows, rows, dtype=torch.bool, device=like.device).tril_()
        mask[:, start:].masked_fill_(~visible, -torch.inf)
        return mask


def padded(rows: int) -> int:
    """How many rows are computed for ``rows`` of several sequences: oneDNN compiles and keeps a kernel for each number
    of rows, and steps that many sequences share would have hundreds."""
    return next(-(-rows // unit) * unit for most, unit in _UNITS if rows <= most)


def concatenated(parts: Sequence[Tensor], spare: Sequence[Tensor] = ()) -> Tensor:
    """All rows and the spare ones, without a copy where there is one part only."""
    parts = [*parts, *(each for each in spare if len(each))]
    return parts[0] if len(parts) == 1 else torch.cat(parts)
