"""Pairs that a head has yet to read: those of the prompt, and of steps without drafts."""

from __future__ import annotations

from torch import Tensor

from ianvs_specdec.drafters.eagle.rows import features_of
from ianvs_specdec.drafters.eagle.steps import Pairs


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
        """How many pairs there are."""
        return self._count

    def add(self, pairs: Pairs) -> None:
        if self._parts:
            self._parts[-1] = _compact(self._parts[-1])
        self._parts.append(pairs)
        self._count += len(pairs.tokens)

    def take(self) -> Pairs:
        """All of them as one; none are left."""
        parts, self._parts, self._count = self._parts, [], 0
        if len(parts) == 1:
            return parts[0]
        tokens = [token for pairs in parts for token in pairs.tokens]
        return Pairs(tokens, features_of(parts) if parts else ())


def _compact(pairs: Pairs) -> Pairs:
    """The same pairs, without rows that belong to none of them."""
    return Pairs(pairs.tokens, [_owned(states) for states in features_of([pairs])])


def _owned(states: Tensor) -> Tensor:
    """``states``, copied where they are a part of something larger."""
    return states if states.untyped_storage().nbytes() == states.numel() * states.itemsize else states.clone()
