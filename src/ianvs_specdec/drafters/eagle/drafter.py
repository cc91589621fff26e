"""EAGLE: a one-layer head extrapolates the target's hidden states.

Li et al. 2024 (arXiv 2401.15077), EAGLE-2 (arXiv 2406.16858) and EAGLE-3 (arXiv 2503.01840).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from ianvs_specdec.drafters.eagle.checkpoint import EagleCheckpoint
from ianvs_specdec.drafters.eagle.head import EagleHead
from ianvs_specdec.drafters.eagle.layout import FILES, WHAT
from ianvs_specdec.drafters.eagle.native import NativeDraft, NativeHead
from ianvs_specdec.drafters.eagle.steps import Growing, Head
from ianvs_specdec.drafters.eagle.trees import Growth, Guesses, dynamic, limited, static
from ianvs_specdec.drafters.hidden_states import HiddenStates
from ianvs_specdec.drafters.lockstep import lockstep
from ianvs_specdec.drafters.probabilities import least_log
from ianvs_specdec.drafters.tensors import find
from ianvs_specdec.engine import Context, Target, TokenTree
from ianvs_specdec.engine.sampling import by_probability
from ianvs_specdec.targets.native.heads import Limits
from ianvs_specdec.targets.native.target import NativeTarget


class Eagle(HiddenStates):
    """Drafts with a head of EAGLE-1, EAGLE-2 or EAGLE-3; ``head`` is the folder of its checkpoint.

    ``tree``: "dynamic" is EAGLE-2's tree of ``total_tokens`` (60) nodes including the root, the best of a beam search
    of width ``eagle_topk`` (10) with ``depth`` (7) steps beyond the root's children; "static" is EAGLE-1's tree of 25
    nodes and the root; "chain" has no branches, with ``depth`` (6) as above. A smaller ``total_tokens``, ``depth``,
    ``eagle_topk`` or budget omits the less likely parts of any tree.
    """

    _head: Head

    def __init__(
        self,
        head: str | Path,
        tree: str = "dynamic",
        total_tokens: int | None = None,
        depth: int | None = None,
        eagle_topk: int | None = None,
    ) -> None:
        super().__init__()
        self._folder = Path(head)
        find(self._folder, FILES, WHAT)
        self._shape = "chain" if tree == "dynamic" and eagle_topk == 1 else tree
        self._topk = eagle_topk or 10
        self._levels = (depth or (6 if tree == "chain" else 7)) + 1
        self._nodes = (total_tokens or {"static": 26, "dynamic": 60, "chain": self._levels + 1}[self._shape]) - 1
        self._static_limits = (None if depth is None else self._levels, eagle_topk)

    def _load(self, target: Target) -> Head:
        checkpoint = EagleCheckpoint.read(self._folder)
        if isinstance(target, NativeTarget):
            return NativeHead(checkpoint, target)
        return EagleHead(checkpoint, target)

    @classmethod
    def propose_all(cls, drafts: Sequence[tuple[Eagle, Context, int]]) -> list[TokenTree | Exception]:
        head = drafts[0][0]._head
        trees: dict[int, TokenTree | Exception] = {}
        growths: dict[int, Growing] = {}
        native_drafts: dict[int, NativeDraft] = {}
        for number, (drafter, context, budget) in enumerate(drafts):
            nodes = min(budget, drafter._nodes)
            if nodes < 1:
                trees[number] = TokenTree.chain(context.tokens[-1])
            elif isinstance(head, NativeHead) and drafter._shape != "static" and by_probability(context.sampling):
                native_drafts[number] = drafter._native(context, nodes)
            else:
                growths[number] = drafter._grow(context, nodes)
        if isinstance(head, NativeHead) and native_drafts:
            trees |= zip(native_drafts, head.draft(list(native_drafts.values())), strict=True)
        if growths:
            with torch.inference_mode():
                trees |= zip(growths, lockstep(head, list(growths.values())), strict=True)
        return [trees[number] for number in range(len(drafts))]

    def _native(self, context: Context, nodes: int) -> NativeDraft:
        limits = Limits(nodes, self._levels, self._topk, least_log(context))
        tree = self._shape == "dynamic"
        return NativeDraft(self._sequence, self._new_pairs(), context.tokens[-1], limits, tree)

    def _grow(self, context: Context, nodes: int) -> Growing:
        guesses = Guesses(context, self._head, random=self._shape != "dynamic")
        pairs, root = self._new_pairs(), context.tokens[-1]
        growth = Growth(self._head, self._sequence, pairs, guesses, root, nodes, least_log(context))
        if self._shape == "static":
            return static(growth, limited(nodes, *self._static_limits))
        if self._shape == "chain":
            return static(growth, tuple((0,) * depth for depth in range(1, min(self._levels, nodes) + 1)))
        return dynamic(growth, self._levels, self._topk)
