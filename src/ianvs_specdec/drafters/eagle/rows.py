"""The rows of a step of an EAGLE head: where they come from, and the buffers that they are computed in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ianvs_specdec.drafters.eagle.layout import HeadConfig
from ianvs_specdec.drafters.eagle.sequence import HeadSequence
from ianvs_specdec.drafters.eagle.steps import Level, Pairs


@dataclass
class Scratch:
    """Buffer for the entries of some rows and the views into it that a step needs."""

    entry: Tensor
    residual: Tensor
    turning: Tensor
    queries: Tensor
    keys_values: Tensor

    @classmethod
    def of(cls, config: HeadConfig, rows: int, like: Tensor, entry_width: int) -> Scratch:
        """Of the type and on the device of ``like``."""
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


def features_of(parts: Sequence[Pairs]) -> list[Tensor]:
    """The features of all pairs, one tensor per feature."""
    return [torch.cat(states) if len(states) > 1 else states[0] for states in zip(*map(_own, parts), strict=True)]


def _own(pairs: Pairs) -> list[Tensor]:
    straight = pairs.rows is None or pairs.rows[-1] == len(pairs.rows) - 1
    rows = slice(len(pairs.tokens)) if straight else torch.tensor(pairs.rows, device=pairs.features[0].device)
    return [states[rows] for states in pairs.features]
