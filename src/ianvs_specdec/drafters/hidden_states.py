"""What drafters share whose head reads the target's hidden states, each in a sequence of its own."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import torch

from ianvs_specdec.drafters.eagle.steps import Pairs, Pending
from ianvs_specdec.drafters.lockstep import only
from ianvs_specdec.drafters.tensors import find
from ianvs_specdec.engine import Context, Drafter, Observation, Output, Target, TokenTree

READ_AT_ONCE = 512
"""Pairs of one request that share a step of the head with its draft. All requests may be behind at the same time, after
a pause: this bounds the memory of that step, and is enough to compute at full speed."""


class HiddenStates(Drafter):
    """The head reads the prompt, and what steps without drafts put out, when it is next asked: one that is never asked
    costs no time. Until then the drafter holds the hidden states of those tokens.

    ``files``: those of which the head's ``folder`` has one; ``what`` it is called in the message where it has none.
    """

    _head: Any

    def __init__(self, folder: str | Path, files: tuple[str, ...], what: str) -> None:
        self._folder = Path(folder)
        find(self._folder, files, what)
        self._target: Target | None = None
        self._sequence: Any = None
        self._pending = Pending()

    @abstractmethod
    def _load(self, target: Target) -> Any:
        """The head in ``_folder``, fitted to ``target``."""

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
        """Hidden states of all tokens, since it may never be asked, and keys and values of those that it has read."""
        if self._target is None:
            return 0
        states = len(self._head.features) * self._target.embedding.shape[1]
        # A target may compute in float32 whatever its weights are.
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

    def propose(self, context: Context, budget: int) -> TokenTree:
        return only(self.propose_all([(self, context, budget)]))

    def _new_pairs(self) -> Pairs:
        """What the head reads in the step in which it drafts; what is more than that is read here."""
        pairs = self._pending.take()
        while len(pairs.tokens) > READ_AT_ONCE:
            first, pairs = pairs.split(READ_AT_ONCE)
            with torch.inference_mode():
                self._head.keep(self._sequence, first)
        return pairs
