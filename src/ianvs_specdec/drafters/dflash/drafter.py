"""DFlash: a small transformer drafts a whole block of tokens in one forward (Chen et al. 2026, arXiv 2602.06036)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from ianvs_specdec.drafters.dflash.head import DFlashHead
from ianvs_specdec.drafters.dflash.layout import FILES, WHAT
from ianvs_specdec.drafters.hidden_states import HiddenStates
from ianvs_specdec.drafters.probabilities import least_log, log_probabilities
from ianvs_specdec.engine import Context, Target, TokenTree
from ianvs_specdec.engine.sampling import Processor


class DFlash(HiddenStates):
    """Drafts chains with a DFlash head; ``head`` is the folder of its checkpoint.

    A draft has at most one token less than the head's block, which begins with the last token. The tokens of a block
    are guessed independently: each is the likeliest of its position, or in rejection sampling drawn.
    """

    _head: DFlashHead

    def __init__(self, head: str | Path) -> None:
        super().__init__(head, FILES, WHAT)

    def _load(self, target: Target) -> DFlashHead:
        return DFlashHead(self._folder, target)

    @classmethod
    def propose_all(cls, drafts: Sequence[tuple[DFlash, Context, int]]) -> list[TokenTree | Exception]:
        head = drafts[0][0]._head
        asked = {}
        for number, (drafter, context, budget) in enumerate(drafts):
            count = min(budget, head.config.block_size - 1, context.remaining - 1)
            if count > 0:
                head.keep(drafter._sequence, drafter._new_pairs())
                asked[number] = drafter._sequence, context.tokens[-1], count
        logits = dict(zip(asked, head.draft(list(asked.values())), strict=True)) if asked else {}
        trees: list[TokenTree | Exception] = []
        for number, (_, context, _) in enumerate(drafts):
            try:
                drafted = number in logits
                trees.append(_chain(context, logits[number]) if drafted else TokenTree.chain(context.tokens[-1]))
            except Exception as error:
                trees.append(error)
        return trees


def _chain(context: Context, logits: Tensor) -> TokenTree:
    """A chain by the ``logits [drafts, vocabulary]`` of its positions."""
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
