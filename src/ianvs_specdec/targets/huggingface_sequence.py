"""One sequence in a Hugging Face model.

Three ways to verify, chosen by what the model can do, all with the same result:

- *in one forward*: a chain through the model's own causal path; a branching tree through a 4-D attention mask with
  explicit positions. Afterwards the cache keeps the accepted path.
- *branch by branch*, for models that take no custom mask or position (ALiBi, some attention kernels): the cache is
  rolled back to the fork before every further branch.
- *on a copy*, for models whose state cannot be rolled back (Mamba, hybrids): as above with copies of the state, and the
  accepted tokens are decoded again on the state from before the step.

A model whose rotations change for good at some length (longrope) never gets a step that goes beyond it: there the whole
sequence is computed anew, as transformers does. One whose rotations change with every token from some length on
(dynamic scaling) gets one token a step from there.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ianvs_specdec.engine.contracts import Output, PromptChunk, StepInput
from ianvs_specdec.engine.tree import TokenTree
from ianvs_specdec.models.rotary import rotary, switch_length, window_of
from ianvs_specdec.targets.attention import any_length
from ianvs_specdec.targets.states import KeyValues, Recurrent, reset_rotations, state_of

# What a model that cannot take a custom mask, positions or several tokens raises when it is given them.
_REFUSALS = (TypeError, ValueError, RuntimeError, IndexError, KeyError, AttributeError, AssertionError)


Compute = Callable[["HuggingFaceSequence"], Output]


class HuggingFaceModel:
    """What a sequence has to know of a ``transformers`` causal LM.

    ``takes_trees``: whether the model computes a branching tree in one forward; ``takes_chunks``, of one whose state
    is not keys and values: several tokens on top of it. None until a sequence has found out.

    The model is put into evaluation mode and otherwise left as it is.
    """

    def __init__(self, model: Any) -> None:
        self.model = model.eval()
        self.config = model.config.get_text_config()
        self.window: int | None = window_of(self.config)
        self.turn = switch_length(self.config)
        dynamic = rotary(self.config)["rope_type"] == "dynamic"
        self.grows: int | None = self.config.max_position_embeddings if dynamic else None
        """The length from which on each token has rotations of its own; None if there is none."""
        self.keeps_no_state = False
        """Whether the model turned out to take a cache and not to use it."""
        self.takes_trees: bool | None = None
        self.takes_chunks: bool | None = None

    @property
    def device(self) -> torch.device:
        return self.model.device

    @cached_property
    def last_only(self) -> dict[str, int]:
        """The argument with which the model computes logits of the last token only."""
        return {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(self.model.forward).parameters else {}

    @cached_property
    def sliding_window(self) -> int | None:
        return getattr(self.config, "sliding_window", None)

    @cached_property
    def layer_kinds(self) -> list[str]:
        """The kinds of attention that the layers have, in transformers' words."""
        kinds = getattr(self.config, "layer_types", None)
        if kinds:
            return sorted(set(kinds))
        return ["full_attention" if self.sliding_window is None else "sliding_attention"]


class HuggingFaceSequence:
    def __init__(self, target: HuggingFaceModel, features: tuple[int, ...] = ()) -> None:
        self._target, self._features = target, features
        self._state: Any = Recurrent() if target.keeps_no_state else state_of(target.model)
        self._base: Any = None
        self._current: list[int] = []
        self._tree = TokenTree.chain(0)
        self._kept: list[int] = []

    @property
    def position_limit(self) -> int | None:
        turn, window = self._target.turn, self._target.window
        if self._target.grows is not None:
            return max(self._target.grows, len(self._kept) + 1)
        if turn is None or len(self._kept) > turn:
            return window
        return turn + (len(self._kept) == turn)

    def close(self) -> None:
        self._state = None

    def compute(self, piece: StepInput) -> Output:
        if not isinstance(piece, PromptChunk):
            return self._verify(piece)
        output = self._prefill(list(piece.tokens))
        return output if piece.last else Output(output.logits[:0], output.hidden)

    def _prefill(self, ids: list[int]) -> Output:
        self._kept += ids
        output = self.forward(ids, **self._target.last_only, last_row=True)
        if isinstance(self._state, KeyValues) and self._state.snapshot() != len(self._kept):
            # The model took the cache and did not use it: it has none.
            self._target.keeps_no_state = True
            self._state = Recurrent()
            return self.forward(ids, **self._target.last_only, last_row=True)
        return output

    def _verify(self, tree: TokenTree) -> Output:
        self._tree = tree
        if len(tree) == 1:
            self._base, self._current = None, [0]
            if self._target.turn is not None and len(self._kept) == self._target.turn:
                return self._forward_anew(tree.tokens)
            return self.forward(tree.tokens)
        self.mark()
        if isinstance(self._state, KeyValues) and (tree.is_chain or _takes_trees(self._target)):
            self._current = list(range(len(tree)))
            return self.forward(tree.tokens) if tree.is_chain else self.forward_tree(tree)
        return self.verify_branches(tree)

    def mark(self) -> None:
        """Remember the state as that before a tree."""
        self._base = self._state.snapshot()

    @torch.inference_mode()
    def commit(self, path: Sequence[int]) -> None:
        self._kept += [self._tree.tokens[node] for node in path]
        if self._current == list(path):
            return
        if isinstance(self._state, KeyValues) and len(self._current) == len(self._tree):
            self._state.cache.keep(self._base, path)
            return
        self._state.restore(self._base)
        self._forward_in_chunks([self._tree.tokens[node] for node in path])

    def snapshot(self) -> Any:
        return self._state.snapshot()

    def restore(self, snapshot: Any) -> None:
        self._state.restore(copy.deepcopy(snapshot))
        del self._kept[snapshot if isinstance(self._state, KeyValues) else len(snapshot[1]) :]

    def forward(self, tokens: list[int], *, last_row: bool = False, **inputs: Any) -> Output:
        """One forward of ``tokens`` on top of the state, which then holds them."""
        pending, state = self._state.before(tokens)
        if self._target.grows is not None:
            reset_rotations(self._target.model)
        with any_length(self._target.device):
            out = self._target.model(
                input_ids=torch.tensor([pending], device=self._target.device),
                use_cache=True,
                output_hidden_states=True if self._features else None,
                **state,
                **inputs,
            )
        self._state.after(tokens, out)
        rows = slice(-1, None) if last_row else slice(-len(tokens), None)
        hidden = tuple(out.hidden_states[i][0][-len(tokens) :] for i in self._features)
        return Output(out.logits[0][rows], hidden)

    def _forward_anew(self, tokens: list[int]) -> Output:
        """``tokens`` and all before them, from an empty state."""
        self._state.clear()
        output = self.forward([*self._kept, *tokens], **self._target.last_only, last_row=True)
        return Output(output.logits[-len(tokens) :], tuple(hidden[-len(tokens) :] for hidden in output.hidden))

    def forward_tree(self, tree: TokenTree) -> Output:
        past = self._state.snapshot()
        positions = torch.tensor([past + depth for depth in tree.depths], device=self._target.device)
        return self.forward(tree.tokens, position_ids=positions[None], attention_mask=self._tree_mask(tree, positions))

    def _tree_mask(self, tree: TokenTree, positions: Tensor) -> Any:
        """Attention mask ``[1, 1, nodes, past + nodes]``; one per kind of layer for models that mix several."""
        past = int(positions[0])
        full = torch.ones(len(tree), past + len(tree), dtype=torch.bool, device=self._target.device)
        full[:, past:] = tree.mask(self._target.device)
        masks = {"full_attention": full}
        if self._target.sliding_window is not None:
            keys = torch.cat([torch.arange(past, device=self._target.device), positions])
            masks["sliding_attention"] = full & (positions[:, None] - keys[None] < self._target.sliding_window)
        if self._target.config._attn_implementation != "sdpa":
            lowest = torch.finfo(self._target.model.dtype).min
            masks = {
                kind: torch.zeros_like(m, dtype=self._target.model.dtype).masked_fill(~m, lowest)
                for kind, m in masks.items()
            }
        shaped = {kind: mask[None, None] for kind, mask in masks.items()}
        if len(self._target.layer_kinds) > 1:
            return {kind: shaped[kind] for kind in self._target.layer_kinds}
        return shaped[self._target.layer_kinds[0]]

    def verify_branches(self, tree: TokenTree) -> Output:
        """Node by node along each branch, going back to the fork for the next branch."""
        parts: dict[int, Output] = {}
        forks: dict[int, Any] = {}
        self._current = []
        children = _children(tree)
        for run in _runs(children):
            parent = tree.parents[run[0]]
            if self._current and self._current[-1] != parent:
                self._state.restore(copy.deepcopy(forks[parent]))
                del self._current[self._current.index(parent) + 1 :]
            output = self._forward_in_chunks([tree.tokens[node] for node in run])
            for row, node in enumerate(run):
                parts[node] = Output(output.logits[row], tuple(h[row] for h in output.hidden))
            self._current += run
            if len(children[run[-1]]) > 1:
                forks[run[-1]] = self._state.snapshot()
        ordered = [parts[node] for node in range(len(tree))]
        hidden = tuple(torch.stack(rows) for rows in zip(*(part.hidden for part in ordered), strict=True))
        return Output(torch.stack([part.logits for part in ordered]), hidden)

    def _forward_in_chunks(self, tokens: list[int]) -> Output:
        if len(tokens) == 1 or isinstance(self._state, KeyValues) or _takes_chunks(self._target):
            return self.forward(tokens)
        outputs = [self.forward([token]) for token in tokens]
        hidden = tuple(torch.cat(rows) for rows in zip(*(output.hidden for output in outputs), strict=True))
        return Output(torch.cat([output.logits for output in outputs]), hidden)


def _children(tree: TokenTree) -> list[list[int]]:
    children: list[list[int]] = [[] for _ in tree.tokens]
    for node, parent in enumerate(tree.parents[1:], start=1):
        children[parent].append(node)
    return children


def _runs(children: list[list[int]]) -> list[list[int]]:
    """The tree in depth-first order, cut into runs without forks."""
    runs: list[list[int]] = []
    stack = [0]
    while stack:
        run = [stack.pop()]
        while len(next_nodes := children[run[-1]]) == 1:
            run += next_nodes
        runs.append(run)
        stack += reversed(next_nodes)
    return runs


def _takes_trees(known: HuggingFaceModel) -> bool:
    """See ``HuggingFaceModel``. Found out once by comparing with decoding branch by branch, not read from a list of
    model names."""
    if known.takes_trees is None:
        maskable = {"full_attention", "sliding_attention"}.issuperset(known.layer_kinds)
        if not maskable or "local" in getattr(known.config, "attention_layers", ()):
            known.takes_trees = False
        else:
            tree = TokenTree([1, 2, 3, 0, 3, 1], [-1, 0, 0, 1, 2, 2])
            known.takes_trees = _agrees(
                known, lambda probe: probe.forward_tree(tree), lambda probe: probe.verify_branches(tree)
            )
    return known.takes_trees


def _takes_chunks(known: HuggingFaceModel) -> bool:
    """See ``HuggingFaceModel``. Found out once by comparing with decoding token by token."""
    tokens = [2, 3, 1, 0]

    def one_by_one(probe: HuggingFaceSequence) -> Output:
        return Output(torch.cat([probe.forward([token]).logits for token in tokens]))

    if known.takes_chunks is None:
        known.takes_chunks = _agrees(known, lambda probe: probe.forward(tokens), one_by_one)
    return known.takes_chunks


def _agrees(known: HuggingFaceModel, fast: Compute, reference: Compute) -> bool:
    """Whether ``fast`` computes what ``reference`` does, on a short sequence of its own."""
    results = []
    for compute in (reference, fast):
        probe = HuggingFaceSequence(known)
        probe.compute(PromptChunk([2, 1, 3, 0, 2, 3]))
        probe.mark()
        try:
            results.append(compute(probe).logits.float())
        except _REFUSALS:
            if compute is reference:
                raise
            return False
    expected, got = results
    tolerance = 1e-3 if known.model.dtype in (torch.float32, torch.float64) else 5e-2
    return bool((got - expected).abs().max() <= tolerance * expected.std())
