"""A target over any Hugging Face causal LM.

Three ways to verify, chosen by what the model can do, all with the same result:

- *in one forward*: a chain through the model's own causal path; a branching tree through a 4-D attention mask with
  explicit positions. Afterwards the cache keeps the accepted path.
- *branch by branch*, for models that take no custom mask or position (ALiBi, some attention kernels): the cache is
  rolled back to the fork before every further branch.
- *on a copy*, for models whose state cannot be rolled back (Mamba, hybrids): as above with copies of the state, and the
  accepted tokens are decoded again on the state from before the step.

A model whose rotations change for good at some length (longrope) never gets a step that goes beyond it: there the whole
sequence is computed anew, as transformers does.

Whether a model computes a branching tree, or several tokens at once on top of its state, is found out once by
comparing with token-by-token decoding, not read from a list of model names.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from ianvs_specdec.decoding.contracts import Output
from ianvs_specdec.decoding.int8 import Int8Module
from ianvs_specdec.decoding.rounding import NEAR_TIE, NEAR_TIE_INT8
from ianvs_specdec.decoding.states import KeyValues, Recurrent, state_of
from ianvs_specdec.decoding.tree import TokenTree

# What a model that cannot take a custom mask, positions or several tokens raises when it is given them.
_REFUSALS = (TypeError, ValueError, RuntimeError, IndexError, KeyError, AttributeError, AssertionError)


class HuggingFaceTarget:
    """Implements ``contracts.Target`` for a loaded ``transformers`` causal LM; one sequence at a time.

    The model is put into evaluation mode and otherwise left as it is.
    """

    kind: ClassVar[str] = "transformers"

    def __init__(self, model: Any) -> None:
        self.model = model.eval()
        self.config = model.config.get_text_config()
        self.window: int | None = getattr(self.config, "max_position_embeddings", None)
        parameters = inspect.signature(model.forward).parameters
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in parameters else {}
        self._features: tuple[int, ...] = ()
        self._state = state_of(model)
        self._base: Any = None
        self._current: list[int] = []
        self._tree = TokenTree.chain(0)
        quantized = any(isinstance(module, Int8Module) for module in model.modules())
        self.near_tie = NEAR_TIE_INT8 if quantized else NEAR_TIE[model.dtype]
        self._turn = _turning_point(self.config)
        self._kept: list[int] = []

    @property
    def reach(self) -> int | None:
        if self._turn is None or len(self._kept) > self._turn:
            return self.window
        return self._turn + (len(self._kept) == self._turn)

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    @property
    def layers(self) -> int:
        return self.config.num_hidden_layers

    @property
    def embedding(self) -> Tensor:
        return self.model.get_input_embeddings().weight

    @property
    def weights(self) -> Sequence[Any]:
        return weights_of(self.model)

    def unembed(self, hidden: Tensor) -> Tensor:
        return self.model.get_output_embeddings()(hidden)

    def warm(self, tokens: int) -> None:
        pass  # the model's own modules decide how they compute

    @torch.inference_mode()
    def prefill(self, ids: Sequence[int], features: Sequence[int] = ()) -> Output:
        self._features = tuple(features)
        self._state.clear()
        self._kept = list(ids)
        output = self._forward(list(ids), **self._last_only, last_row=True)
        if isinstance(self._state, KeyValues) and self._state.snapshot() != len(ids):
            # The model took the cache and did not use it: it has none.
            self._state = Recurrent()
            return self._forward(list(ids), **self._last_only, last_row=True)
        return output

    @torch.inference_mode()
    def verify(self, tree: TokenTree) -> Output:
        """Logits ``[nodes, vocabulary]``; see ``contracts.Target``."""
        self._tree = tree
        if len(tree) == 1:
            self._base, self._current = None, [0]
            if self._turn is not None and len(self._kept) == self._turn:
                return self._forward_anew(tree.tokens)
            return self._forward(tree.tokens)
        self._base = self._state.snapshot()
        if isinstance(self._state, KeyValues) and (tree.is_chain or self._takes_trees):
            self._current = list(range(len(tree)))
            return self._forward(tree.tokens) if tree.is_chain else self._forward_tree(tree)
        return self._verify_branches(tree)

    @torch.inference_mode()
    def commit(self, path: Sequence[int]) -> None:
        if self._turn is not None:
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
        if self._turn is not None:
            del self._kept[snapshot if isinstance(self._state, KeyValues) else len(snapshot[1]) :]

    def _forward(self, tokens: list[int], *, last_row: bool = False, **inputs: Any) -> Output:
        """One forward of ``tokens`` on top of the state, which then holds them."""
        pending, state = self._state.before(tokens)
        out = self.model(
            input_ids=torch.tensor([pending], device=self.device),
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
        output = self._forward([*self._kept, *tokens], **self._last_only, last_row=True)
        return Output(output.logits[-len(tokens) :], tuple(hidden[-len(tokens) :] for hidden in output.hidden))

    def _forward_tree(self, tree: TokenTree) -> Output:
        past = self._state.snapshot()
        positions = torch.tensor([past + depth for depth in tree.depths], device=self.device)
        return self._forward(tree.tokens, position_ids=positions[None], attention_mask=self._tree_mask(tree, positions))

    def _tree_mask(self, tree: TokenTree, positions: Tensor) -> Any:
        """Attention mask ``[1, 1, nodes, past + nodes]``; one per kind of layer for models that mix several."""
        past = int(positions[0])
        full = torch.ones(len(tree), past + len(tree), dtype=torch.bool, device=self.device)
        full[:, past:] = tree.mask(self.device)
        masks = {"full_attention": full}
        if self._sliding_window is not None:
            keys = torch.cat([torch.arange(past, device=self.device), positions])
            masks["sliding_attention"] = full & (positions[:, None] - keys[None] < self._sliding_window)
        if self.config._attn_implementation != "sdpa":
            lowest = torch.finfo(self.model.dtype).min
            masks = {
                kind: torch.zeros_like(m, dtype=self.model.dtype).masked_fill(~m, lowest) for kind, m in masks.items()
            }
        shaped = {kind: mask[None, None] for kind, mask in masks.items()}
        if len(self._layer_kinds) > 1:
            return {kind: shaped[kind] for kind in self._layer_kinds}
        return shaped[self._layer_kinds[0]]

    @cached_property
    def _sliding_window(self) -> int | None:
        return getattr(self.config, "sliding_window", None)

    @cached_property
    def _layer_kinds(self) -> list[str]:
        kinds = getattr(self.config, "layer_types", None)
        if kinds:
            return sorted(set(kinds))
        return ["full_attention" if self._sliding_window is None else "sliding_attention"]

    def _verify_branches(self, tree: TokenTree) -> Output:
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
        if len(tokens) == 1 or isinstance(self._state, KeyValues) or self._takes_chunks:
            return self._forward(tokens)
        outputs = [self._forward([token]) for token in tokens]
        hidden = tuple(torch.cat(rows) for rows in zip(*(output.hidden for output in outputs), strict=True))
        return Output(torch.cat([output.logits for output in outputs]), hidden)

    @cached_property
    def _takes_trees(self) -> bool:
        known = {"full_attention", "sliding_attention"}
        if not known.issuperset(self._layer_kinds) or "local" in getattr(self.config, "attention_layers", ()):
            return False
        tree = TokenTree([1, 2, 3, 0, 3, 1], [-1, 0, 0, 1, 2, 2])
        return self._agrees(lambda probe: probe._forward_tree(tree), lambda probe: probe._verify_branches(tree))

    @cached_property
    def _takes_chunks(self) -> bool:
        tokens = [2, 3, 1, 0]

        def one_by_one(probe: HuggingFaceTarget) -> Output:
            return Output(torch.cat([probe._forward([token]).logits for token in tokens]))

        return self._agrees(lambda probe: probe._forward(tokens), one_by_one)

    def _agrees(self, fast: Any, reference: Any) -> bool:
        """Whether ``fast`` computes what ``reference`` does, on a short sequence of its own."""
        results = []
        for compute in (reference, fast):
            probe = HuggingFaceTarget(self.model)
            probe.prefill([2, 1, 3, 0, 2, 3])
            probe._base = probe._state.snapshot()
            try:
                results.append(compute(probe).logits.float())
            except _REFUSALS:
                if compute is reference:
                    raise
                return False
        expected, got = results
        tolerance = 1e-3 if self.model.dtype in (torch.float32, torch.float64) else 5e-2
        return bool((got - expected).abs().max() <= tolerance * expected.std())


def _turning_point(config: Any) -> int | None:
    """The length from which on a model's rotary embedding is another one for all positions; None if there is none."""
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    by_layer = [kind for kind in rope.values() if isinstance(kind, dict)] or [rope]
    turning = [kind for kind in by_layer if kind.get("rope_type", kind.get("type")) == "longrope"]
    if not turning:
        return None
    stated = turning[0].get("original_max_position_embeddings")
    return int(stated or getattr(config, "original_max_position_embeddings", config.max_position_embeddings))


def weights_of(model: Any) -> list[Any]:
    """The weights and buffers of a model of transformers, those in 8-bit integers included."""
    products = [module.product for module in model.modules() if isinstance(module, Int8Module)]
    return [*model.parameters(), *model.buffers(), *products]


def _children(tree: TokenTree) -> list[list[int]]:
    """The children of every node, scouts too."""
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
