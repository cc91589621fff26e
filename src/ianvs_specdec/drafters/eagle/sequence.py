"""The state of one sequence in an EAGLE head, and its rows in a step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ianvs_specdec.drafters.eagle.layout import HeadConfig
from ianvs_specdec.drafters.eagle.steps import Level, Pairs
from ianvs_specdec.targets.fused_sequence import room


class HeadSequence:
    """Keys and values of the pairs that stay, then those of the tree being drafted.

    Pair i is the token at index i + 1 and the target's feature at index i; it sits at position i. ``hidden`` and
    ``carry`` are those of the rows that were computed last: of the last pair, or of a level.
    """

    hidden: Tensor
    carry: Tensor
    _last: Tensor

    def __init__(self, config: HeadConfig, work: torch.dtype, device: torch.device) -> None:
        self.length = self._end = 0
        self._key_heads = config.keys
        self._cache = torch.empty(0, 2 * config.keys * config.width, dtype=work, device=device)

    def close(self) -> None:
        """Free the memory."""
        self._cache = self._keys = self._values = self._cache.new_empty(0)

    def computed(self, hidden: Tensor, *, stay: bool) -> None:
        """Hidden states of the rows that were written, of those that are wanted."""
        self.hidden = hidden
        if stay:
            self._last = hidden

    def go_back(self) -> None:
        """Drop what was drafted since the last pair."""
        self.hidden, self._end = self._last, self.length

    def write(self, keys_values: Tensor, *, stay: bool) -> None:
        """Add keys and values of some rows ``[rows, 2 * key heads * width]``, of pairs that ``stay`` in the place of
        what was drafted."""
        start = self.length if stay else self._end
        self._end = end = start + len(keys_values)
        if stay:
            self.length = end
        self._reserve(end)
        self._cache[start:end] = keys_values

    def attend(self, queries: Tensor, mask: Tensor | None) -> Tensor:
        """Attention of ``queries [rows, key heads, group, width]`` to all that was written: ``[rows, heads * width]``.

        ``mask [rows, drafted rows]`` is added to the scores for what was drafted.
        """
        rows, heads, group, width = queries.shape
        by_head = queries[0] if rows == 1 else queries.transpose(0, 1).reshape(heads, rows * group, width)
        scores = torch.bmm(by_head, self._keys[:, :, : self._end])
        if mask is not None:
            scores.view(heads, rows, group, -1)[..., self.length :].add_(mask[:, None])
        attended = torch.bmm(scores.softmax(dim=-1), self._values[:, : self._end])
        if rows == 1:
            return attended.view(1, -1)
        return attended.view(heads, rows, group, width).transpose(0, 1).reshape(rows, -1)

    def _reserve(self, positions: int) -> None:
        if positions <= len(self._cache):
            return
        cache = self._cache.new_empty(room(positions), self._cache.shape[1])
        cache[: len(self._cache)] = self._cache
        self._cache = cache
        keys, values = cache.view(len(cache), 2, self._key_heads, -1).unbind(1)
        self._keys, self._values = keys.permute(1, 2, 0), values.transpose(0, 1)


@dataclass
class Rows:
    """One sequence's rows in a step: ``tokens`` at ``positions``, with what the ``hidden`` states before them ``carry``
    over. The last ``wanted`` of them are computed to the end."""

    sequence: HeadSequence
    tokens: Tensor
    hidden: Tensor
    carry: Tensor
    positions: slice
    wanted: int
    stay: bool
    mask: Tensor | None

    @classmethod
    def of_pairs(cls, sequence: HeadSequence, pairs: Pairs, hidden: Tensor, carry: Tensor) -> Rows:
        """Pairs that stay; ``hidden`` and ``carry`` have one row for each."""
        tokens = torch.tensor(pairs.tokens, device=hidden.device)
        positions = slice(sequence.length, sequence.length + len(tokens))
        return cls(sequence, tokens, hidden[-1:], carry, positions, 1, stay=True, mask=None)

    @classmethod
    def of_level(cls, sequence: HeadSequence, level: Level) -> Rows:
        """A level, which goes on from the rows that ``sequence`` computed last."""
        hidden, carry = sequence.hidden, sequence.carry
        if level.above is not None:
            hidden, carry = hidden.index_select(0, level.above), carry.index_select(0, level.above)
        position, rows = sequence.length + level.depth - 1, len(level.tokens)
        return cls(
            sequence, level.tokens, hidden, carry, slice(position, position + 1), rows, stay=False, mask=level.mask
        )

    def angles(self, angles: Tensor, *, alone: bool) -> Tensor:
        """The rows' own of all ``angles [positions, 1, width / 2]``; one for all of them will do where no other rows
        are turned with them."""
        own = angles[self.positions]
        return own if alone or self.stay else own.expand(len(self.tokens), -1, -1)
