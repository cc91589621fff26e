"""Base class of drafters whose head reads the target's hidden states."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from ianvs_specdec.engine import Context, Drafter, Observation, Output, Target

READ_AT_ONCE = 512
"""Maximum number of pairs per request in a head's step. After a pause all requests have many unread pairs; this bounds
the memory of the step and is enough for full speed."""


@dataclass
class Pairs:
    """``tokens``, each with the target's output for the token before it.

    ``features`` has one tensor ``[rows, hidden]`` per feature of the head. ``rows`` are the rows of the tokens, None =
    the first ones. Without tokens, the logits of the last pair are requested again.
    """

    tokens: Sequence[int] = ()
    features: Sequence[Tensor] = ()
    rows: Sequence[int] | None = None

    def split(self, count: int) -> tuple[Pairs, Pairs]:
        parts = slice(count), slice(count, None)
        if self.rows is not None:
            first, rest = (Pairs(self.tokens[part], self.features, self.rows[part]) for part in parts)
        else:
            first, rest = (Pairs(self.tokens[part], [own[part] for own in self.features]) for part in parts)
        return first, rest

    def compact(self) -> Pairs:
        """The same pairs without other rows."""
        return Pairs(self.tokens, [_unshared(states) for states in features_of([self])])


class Pending:
    """The unread pairs of one sequence.

    A step's output has rows of all requests, and a reference to a part keeps all of them in memory. So only the latest
    output is kept as it is, since most are read in the next step; rows of earlier ones are copied.
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
        """Remove and return all pairs as one."""
        parts, self._parts, self._count = self._parts, [], 0
        if len(parts) == 1:
            return parts[0]
        tokens = [token for pairs in parts for token in pairs.tokens]
        return Pairs(tokens, features_of(parts) if parts else ())


def features_of(parts: Sequence[Pairs]) -> list[Tensor]:
    """One tensor ``[tokens, hidden]`` per feature."""
    return [torch.cat(states) if len(states) > 1 else states[0] for states in zip(*map(_rows_of, parts), strict=True)]


def _rows_of(pairs: Pairs) -> list[Tensor]:
    straight = pairs.rows is None or pairs.rows[-1] == len(pairs.rows) - 1
    rows = slice(len(pairs.tokens)) if straight else torch.tensor(pairs.rows, device=pairs.features[0].device)
    return [states[rows] for states in pairs.features]


def _unshared(states: Tensor) -> Tensor:
    """``states``, copied if they are a part of a larger tensor."""
    return states if states.untyped_storage().nbytes() == states.numel() * states.itemsize else states.clone()


class HiddenStates(Drafter):
    """The head reads the prompt, and the tokens of steps without drafts, when the next draft is requested, so that
    unused drafters take no time. Until then the drafter holds their hidden states.

    A head has ``features`` (see ``Target.open``), ``open()`` for a sequence with ``close``, ``memory(positions)``, and
    ``keep(sequence, pairs)``, which reads pairs.
    """

    _head: Any

    def __init__(self) -> None:
        self._target: Target | None = None
        self._sequence: Any = None
        self._pending = Pending()

    @abstractmethod
    def _load(self, target: Target) -> Any:
        """The head for ``target``."""

    @torch.inference_mode()
    def prepare(self, target: Target) -> Sequence[int]:
        if target is not self._target:
            self._head = self._load(target)
            self._target = target
        features: Sequence[int] = self._head.features
        return features

    def fork(self) -> Self:
        another = copy.copy(self)
        another._sequence, another._pending = None, Pending()
        return another

    @property
    def unread_tokens(self) -> int:
        return len(self._pending)

    @property
    def batch_key(self) -> Any:
        return self._head

    def memory(self, positions: int) -> int:
        """Hidden states of all tokens, since a draft may never be requested, and keys and values of the read ones."""
        if self._target is None:
            return 0
        states = len(self._head.features) * self._target.embedding.shape[1]
        # A target may compute in float32 with weights of any type.
        size = max(torch.float32.itemsize, self._target.dtype.itemsize)
        cache: int = self._head.memory(positions)
        return states * size * positions + cache

    def weights(self) -> Sequence[Any]:
        return (self._head,)

    @torch.inference_mode()
    def begin(self, target: Target, context: Context, prefill: Output) -> None:
        self.end()
        self._sequence = self._head.open()
        self._pending.add(Pairs(context.tokens[1:], prefill.hidden))

    def observe(self, observation: Observation) -> None:
        tokens, path = observation.tree.tokens, observation.path
        added = [*(tokens[node] for node in path[1:]), observation.token]
        self._pending.add(Pairs(added, observation.output.hidden, path))

    def end(self) -> None:
        if self._sequence is not None:
            self._sequence.close()
            self._sequence, self._pending = None, Pending()

    def _new_pairs(self) -> Pairs:
        """The pairs to read in the step that drafts; those beyond ``READ_AT_ONCE`` are read here."""
        pairs = self._pending.take()
        while len(pairs.tokens) > READ_AT_ONCE:
            first, pairs = pairs.split(READ_AT_ONCE)
            with torch.inference_mode():
                self._head.keep(self._sequence, first)
        return pairs
