"""The state of one sequence in an EAGLE head: keys and values of the pairs that stay and of the tree being drafted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ianvs_specdec.drafters.eagle.head import EagleHead
from ianvs_specdec.drafters.eagle.layout import HeadConfig

_FIRST_CAPACITY = 512
_KEPT_ROWS = 32


@dataclass
class _Scratch:
    """Buffer for the entries of some rows and the views into it that a step needs."""

    entry: Tensor
    residual: Tensor
    turning: Tensor
    queries: Tensor
    keys_values: Tensor

    @classmethod
    def of(cls, config: HeadConfig, rows: int, like: Tensor, entry_width: int) -> _Scratch:
        entry = like.new_empty(rows, entry_width)
        residual, projected = entry.split([entry_width - config.projected, config.projected], dim=-1)
        turned = (config.queries + config.keys) * config.width
        return cls(
            entry,
            residual,
            torch.view_as_complex(projected[:, :turned].view(rows, -1, config.width // 2, 2)),
            projected[:, : config.queries * config.width].view(rows, config.keys, -1, config.width),
            projected[:, config.queries * config.width :],
        )


class HeadSequence:
    """The state of one sequence: keys and values of the pairs that stay, then those of the tree being drafted.

    Pair i is the token at index i + 1 and the target's feature at index i; it sits at position i.
    """

    def __init__(self, head: EagleHead) -> None:
        self._head = head
        self.length = self._end = 0
        self._cache = torch.empty(0, 2 * head.config.keys * head.config.width, dtype=head.work, device=head.device)
        self._kept: dict[int, _Scratch] = {}
        self._reserve(1)

    def clear(self) -> None:
        self.length = self._end = 0

    def append(self, tokens: Tensor, features: Sequence[Tensor]) -> Tensor:
        """Add pairs of ``tokens [rows]`` and the target's ``features`` for good, drop the drafted tree, and return the
        hidden state ``[1, hidden]`` after the last pair."""
        start, self.length = self.length, self.length + len(tokens)
        hidden = self._head.absorb(features)
        self._end = start
        scratch = self._enter(tokens, self._head.carry(hidden), start, stay=True)
        residual = hidden if self._head.eagle3 else scratch.residual
        return self._head.finish(residual[-1:], self._attend(scratch.queries[-1:], None))

    def extend(self, tokens: Tensor, carry: Tensor, hidden: Tensor, depth: int, mask: Tensor | None = None) -> Tensor:
        """Add one drafted level: ``tokens [rows]`` at distance ``depth`` (from 1) from the root, with what was carried
        over from, and the ``hidden`` states ``[rows or 1, hidden]`` of, the level before.

        ``mask [rows, drafted rows so far]`` is added to the attention scores for what was drafted since ``append``; not
        needed for a chain. Returns the hidden states ``[rows, hidden]``.
        """
        scratch = self._enter(tokens, carry, self.length + depth - 1, stay=False)
        residual = hidden.expand(len(tokens), -1) if self._head.eagle3 else scratch.residual
        return self._head.finish(residual, self._attend(scratch.queries, mask))

    def _enter(self, tokens: Tensor, carry: Tensor, position: int, *, stay: bool) -> _Scratch:
        """Compute queries, keys and values, and write the latter two."""
        rows, start = len(tokens), self._end
        self._end = end = start + rows
        self._reserve(end)
        scratch = self._kept.get(rows) or self._new_scratch(rows)
        torch.add(carry, self._head.entry(tokens), out=scratch.entry)
        scratch.turning.mul_(self._angles[position : position + rows] if stay else self._angles[position])
        self._cache[start:end] = scratch.keys_values
        return scratch

    def _attend(self, queries: Tensor, mask: Tensor | None) -> Tensor:
        """Attention of ``queries [rows, key heads, group, width]`` to all that was written: ``[rows, heads *
        width]``."""
        rows, heads, group, width = queries.shape
        by_head = queries[0] if rows == 1 else queries.transpose(0, 1).reshape(heads, rows * group, width)
        scores = torch.bmm(by_head, self._keys[:, :, : self._end])
        if mask is not None:
            scores.view(heads, rows, group, -1)[..., self.length :].add_(mask[:, None])
        attended = torch.bmm(scores.softmax(dim=-1), self._values[:, : self._end])
        if rows == 1:
            return attended.view(1, -1)
        return attended.view(heads, rows, group, width).transpose(0, 1).reshape(rows, -1)

    def _new_scratch(self, rows: int) -> _Scratch:
        scratch = _Scratch.of(self._head.config, rows, self._cache, self._head.entry_width)
        if rows <= _KEPT_ROWS:
            self._kept[rows] = scratch
        return scratch

    def _reserve(self, positions: int) -> None:
        """Room for ``positions`` keys and values, those written kept, and their rotations."""
        if positions <= len(self._cache):
            return
        capacity = max(_FIRST_CAPACITY, 2 * positions)
        cache = self._cache.new_empty(capacity, self._cache.shape[1])
        cache[: len(self._cache)] = self._cache
        self._cache = cache
        keys, values = cache.view(capacity, 2, self._head.config.keys, -1).unbind(1)
        self._keys, self._values = keys.permute(1, 2, 0), values.transpose(0, 1)
        self._angles = self._head.angles(capacity)
