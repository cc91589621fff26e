"""DFlash: a small transformer drafts a whole block of tokens in one forward (Chen et al. 2026, arXiv 2602.06036)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from ianvs_specdec.drafters.dflash.head import DFlashHead, StepPart
from ianvs_specdec.drafters.dflash.layout import FILES, WHAT
from ianvs_specdec.drafters.hidden_states import HiddenStates
from ianvs_specdec.drafters.lockstep import Growth, lockstep
from ianvs_specdec.drafters.probabilities import ChainDraft
from ianvs_specdec.drafters.tensors import find
from ianvs_specdec.engine import Context, Target, TokenTree


class DFlash(HiddenStates):
    """Drafts chains with a DFlash head; ``head`` is the folder of its checkpoint.

    A draft has at most one token less than the head's block, which begins with the last token. The tokens of a block
    are guessed independently: each is the likeliest of its position, or in rejection sampling drawn.
    """

    _head: DFlashHead

    def __init__(self, head: str | Path) -> None:
        super().__init__()
        self._folder = Path(head)
        find(self._folder, FILES, WHAT)

    def _load(self, target: Target) -> DFlashHead:
        return DFlashHead(self._folder, target)

    @classmethod
    def propose_all(cls, drafts: Sequence[tuple[DFlash, Context, int]]) -> list[TokenTree | Exception]:
        return lockstep(drafts[0][0]._head, [drafter._grow(context, budget) for drafter, context, budget in drafts])

    def _grow(self, context: Context, budget: int) -> Growth[StepPart, Tensor]:
        count = min(budget, self._head.config.block_size - 1, context.remaining - 1)
        draft = ChainDraft(context, self._head.device, count)
        if count > 0:
            self._head.keep(self._sequence, self._new_pairs())
            logits = yield self._sequence, context.tokens[-1], count
            # A penalty on repeated tokens depends on the tokens before.
            for rows in logits.split(1 if context.sampling.repetition_penalty != 1 else count):
                draft.add(rows)
                if draft.ended:
                    break
        return draft.tree()
