"""What drafts ask of a head, and what a head answers: the contract between ``trees`` and what computes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from ianvs_specdec.drafters.eagle.layout import HeadConfig
from ianvs_specdec.drafters.lockstep import Growth


@dataclass
class Pairs:
    """Pairs that a sequence keeps: ``tokens``, each with what the target computed for the one before it.

    ``features`` has one tensor ``[rows, hidden]`` per feature of the head. ``rows`` says which of them belong to the
    tokens, None = the first ones. No tokens: nothing is new, and the last pair's logits are asked for again.
    """

    tokens: Sequence[int] = ()
    features: Sequence[Tensor] = ()
    rows: Sequence[int] | None = None

    def split(self, count: int) -> tuple[Pairs, Pairs]:
        tokens, rest = self.tokens[:count], self.tokens[count:]
        if self.rows is not None:
            return Pairs(tokens, self.features, self.rows[:count]), Pairs(rest, self.features, self.rows[count:])
        return Pairs(tokens, [part[:count] for part in self.features]), Pairs(
            rest, [part[count:] for part in self.features]
        )

    def compact(self) -> Pairs:
        """The same pairs, without rows that belong to none of them."""
        return Pairs(self.tokens, [_unshared(states) for states in features_of([self])])


class Pending:
    """The pairs of one sequence in the order in which they came.

    A step's output has a row for every token of every request, and whoever holds a part of it holds the whole. So only
    the latest step's is held as it came, since most are read right after; of those before it there are copies of the
    pairs' own rows.
    """

    def __init__(self) -> None:
        self._parts: list[Pairs] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, pairs: Pairs) -> None:
        if self._parts:
            self._parts[-1] = self._parts[-1].compact()
        self._parts.append(pairs)
        self._count += len(pairs.tokens)

    def take(self) -> Pairs:
        """All of them as one; none are left."""
        parts, self._parts, self._count = self._parts, [], 0
        if len(parts) == 1:
            return parts[0]
        tokens = [token for pairs in parts for token in pairs.tokens]
        return Pairs(tokens, features_of(parts) if parts else ())


def features_of(parts: Sequence[Pairs]) -> list[Tensor]:
    return [torch.cat(states) if len(states) > 1 else states[0] for states in zip(*map(_rows_of, parts), strict=True)]


def _rows_of(pairs: Pairs) -> list[Tensor]:
    straight = pairs.rows is None or pairs.rows[-1] == len(pairs.rows) - 1
    rows = slice(len(pairs.tokens)) if straight else torch.tensor(pairs.rows, device=pairs.features[0].device)
    return [states[rows] for states in pairs.features]


def _unshared(states: Tensor) -> Tensor:
    """``states``, copied where they are a part of something larger."""
    return states if states.untyped_storage().nbytes() == states.numel() * states.itemsize else states.clone()


@dataclass
class Level:
    """One drafted level: ``tokens [rows]`` at distance ``depth`` (from 1) from the root.

    ``above [rows]`` says of which rows of the level before they are the children; None = of its only row. ``mask [rows,
    rows drafted so far]`` is 0 where a row sees another, else -inf; not needed for a chain.
    """

    tokens: Tensor
    depth: int
    above: Tensor | None = None
    mask: Tensor | None = None


Asked = tuple[Any, Pairs | Level]
"""A sequence of the head's, and what it has computed. The pairs drop what was drafted after the pairs before them."""

Growing = Growth[Asked, Tensor]
"""A draft in the making."""


class Head(Protocol):
    """A head fitted to a target, which computes steps of many sequences at once."""

    config: HeadConfig
    device: torch.device
    work: torch.dtype
    """What is computed outside of the products."""
    features: tuple[int, ...]
    """The target's hidden states that it reads (see ``Target.open``)."""
    vocabulary: int
    """Of the target."""
    vocabulary_map: Tensor | None
    """The target's ids of the draft vocabulary; None = they are the same."""

    def open(self) -> Any:
        """A new, empty sequence, with a method ``close``."""

    def memory(self, positions: int) -> int:
        """Bytes of the keys and values of a sequence with so many pairs, at most."""

    def keep(self, sequence: Any, pairs: Pairs) -> None:
        """Add pairs without asking for logits."""

    def step(self, parts: Sequence[Asked]) -> list[Tensor]:
        """The logits of the last pair, ``[1, draft vocabulary]``, or of the rows of the level, for each of several
        different sequences."""
