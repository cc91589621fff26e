"""DFlash: a small transformer drafts a whole block of tokens in one forward (Chen et al. 2026, arXiv 2602.06036)."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ianvs_specdec.drafters.dflash.head import DFlashHead, HeadSequence
from ianvs_specdec.drafters.dflash.layout import FILES, WHAT
from ianvs_specdec.drafters.eagle.steps import Pairs, Pending, features_of
from ianvs_specdec.drafters.lockstep import only
from ianvs_specdec.drafters.probabilities import least_log, log_probabilities
from ianvs_specdec.drafters.tensors import find
from ianvs_specdec.engine import Context, Drafter, Observation, Output, Target, TokenTree
from ianvs_specdec.engine.sampling import Processor

READ_AT_ONCE = 512
"""Positions of one request that are read together, which bounds the memory of that step."""


class DFlash(Drafter):
    """Drafts chains with a DFlash head; ``head`` is the folder of its checkpoint.

    A draft has at most one token less than the head's block, which begins with the last token. The tokens of a block
    are guessed independently: each is the likeliest of its position, or in rejection sampling drawn.

    The head reads the prompt, and what steps without drafts put out, when it is next asked. Until then the drafter
    holds the hidden states of those tokens.
    """

    _head: DFlashHead
    _sequence: HeadSequence

    def __init__(self, head: str | Path) -> None:
        self._folder = Path(head)
        find(self._folder, FILES, WHAT)
        self._target: Target | None = None
        self._pending = Pending()

    def prepare(self, target: Target) -> Sequence[int]:
        if target is not self._target:
            self._head = DFlashHead(self._folder, target)
            self._target = target
        return self._head.features

    def fork(self) -> DFlash:
        another = copy.copy(self)
        another._pending = Pending()
        return another

    @property
    def unread_tokens(self) -> int:
        return len(self._pending)

    @property
    def batch_key(self) -> DFlashHead:
        return self._head

    def memory(self, positions: int) -> int:
        """Hidden states of all tokens, since it may never be asked, and keys and values of those that it has read."""
        if self._target is None:
            return 0
        states = len(self._head.features) * self._head.config.hidden_size
        # A target may compute in float32 whatever its weights are.
        size = max(torch.float32.itemsize, self._target.dtype.itemsize)
        return states * size * positions + self._head.memory(positions)

    def weights(self) -> Sequence[Any]:
        return (self._head,)

    def begin(self, target: Target, context: Context, prefill: Output) -> None:
        self._sequence, self._pending = self._head.open(), Pending()
        self._pending.add(Pairs(context.tokens[1:], prefill.hidden))

    def observe(self, observation: Observation) -> None:
        tokens, path = observation.tree.tokens, observation.path
        added = [*(tokens[node] for node in path[1:]), observation.token]
        self._pending.add(Pairs(added, observation.output.hidden, path))

    def end(self) -> None:
        self._pending = Pending()
        if self._target is not None:
            self._sequence = self._head.open()

    def propose(self, context: Context, budget: int) -> TokenTree:
        return only(self.propose_all([(self, context, budget)]))

    @classmethod
    def propose_all(cls, drafts: Sequence[tuple[DFlash, Context, int]]) -> list[TokenTree | Exception]:
        head = drafts[0][0]._head
        asked = {}
        for number, (drafter, context, budget) in enumerate(drafts):
            count = min(int(budget), head.config.block_size - 1, context.remaining - 1)
            if count > 0:
                drafter._read()
                asked[number] = drafter._sequence, context.tokens[-1], count
        logits = dict(zip(asked, head.draft(list(asked.values())), strict=True)) if asked else {}
        return [_chain(context, logits.get(number)) for number, (_, context, _) in enumerate(drafts)]

    def _read(self) -> None:
        pairs = self._pending.take()
        while pairs.tokens:
            first, pairs = pairs.split(READ_AT_ONCE)
            self._head.read(self._sequence, features_of([first]))


def _chain(context: Context, logits: Tensor | None) -> TokenTree | Exception:
    """A chain by the ``logits [drafts, vocabulary]`` of its positions."""
    try:
        return _chosen(context, logits) if logits is not None else TokenTree.chain(context.tokens[-1])
    except Exception as error:
        return error


def _chosen(context: Context, logits: Tensor) -> TokenTree:
    sampling, position = context.sampling, len(context.tokens)
    processor = Processor(sampling, context.tokens, logits.device)
    draws = not sampling.greedy and context.noise is None
    draft: list[int] = []
    drawn_from: dict[int, Tensor] = {}
    score, least = 0.0, least_log(context)
    # A penalty on repeated tokens depends on the tokens before.
    for part in logits.split(1 if sampling.repetition_penalty != 1 else len(logits)):
        places = range(position + len(draft), position + len(draft) + len(part))
        known = log_probabilities(context, processor, part, places)
        best = known.max(dim=-1)
        tokens = best.indices
        if draws:
            tokens = torch.multinomial(known.exp(), 1, generator=context.generator)[:, 0]
        for row, (value, token) in enumerate(zip(best.values.tolist(), tokens.tolist(), strict=True)):
            # Of the likeliest token, whichever was drawn: a draft must not end because of what was drawn.
            score += value
            if score < least or score == -math.inf:
                return TokenTree.chain(context.tokens[-1], draft, drawn_from or None)
            if draws:
                drawn_from[len(draft)] = known[row].exp()
            draft.append(token)
            processor.extend(token)
    return TokenTree.chain(context.tokens[-1], draft, drawn_from or None)
