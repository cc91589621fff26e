"""A target over any Hugging Face causal LM.

Whether a model computes a branching tree, or several tokens at once on top of its state, is found out once by comparing
with token-by-token decoding, not read from a list of model names.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from ianvs_specdec.checkpoints.rotary import rotary, window_of
from ianvs_specdec.decoding.contracts import Output, Piece, Prompt
from ianvs_specdec.decoding.huggingface_sequence import HuggingFaceSequence
from ianvs_specdec.decoding.int8 import Int8Module
from ianvs_specdec.decoding.rounding import NEAR_TIE, NEAR_TIE_INT8
from ianvs_specdec.decoding.tree import TokenTree

# What a model that cannot take a custom mask, positions or several tokens raises when it is given them.
_REFUSALS = (TypeError, ValueError, RuntimeError, IndexError, KeyError, AttributeError, AssertionError)


class HuggingFaceTarget:
    """Implements ``contracts.Target`` for a loaded ``transformers`` causal LM, one sequence of a step after another.

    The model is put into evaluation mode and otherwise left as it is.
    """

    kind: ClassVar[str] = "transformers"
    prompt_rows: ClassVar[int | None] = None

    def __init__(self, model: Any) -> None:
        self.model = model.eval()
        self.config = model.config.get_text_config()
        self.window: int | None = window_of(self.config)
        quantized = any(isinstance(module, Int8Module) for module in model.modules())
        self.near_tie = NEAR_TIE_INT8 if quantized else NEAR_TIE[model.dtype]
        self.turn = _turning_point(self.config)
        dynamic = rotary(self.config)["rope_type"] == "dynamic"
        self.grows: int | None = self.config.max_position_embeddings if dynamic else None
        """The length from which on each token has rotations of its own; None if there is none."""
        self.keeps_no_state = False
        """Whether the model turned out to take a cache and not to use it."""

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
    def vocabulary(self) -> int:
        return len(self.embedding)

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

    def memory(self, positions: int) -> int:
        from ianvs_specdec.decoding.cache import most_room

        # Of other states than keys and values nothing is known before they are there.
        queries = int(getattr(self.config, "num_attention_heads", None) or 1)
        heads = int(getattr(self.config, "num_key_value_heads", None) or queries)
        width = int(getattr(self.config, "head_dim", None) or self.config.hidden_size // queries)
        return self.layers * 2 * heads * width * most_room(positions) * self.dtype.itemsize

    def open(self, features: Sequence[int] = ()) -> HuggingFaceSequence:
        return HuggingFaceSequence(self, tuple(features))

    @torch.inference_mode()
    def step(self, parts: Sequence[tuple[Any, Piece]]) -> list[Output]:
        return [sequence.compute(piece) for sequence, piece in parts]

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

    @cached_property
    def takes_trees(self) -> bool:
        """Whether the model computes a branching tree in one forward."""
        known = {"full_attention", "sliding_attention"}
        if not known.issuperset(self.layer_kinds) or "local" in getattr(self.config, "attention_layers", ()):
            return False
        tree = TokenTree([1, 2, 3, 0, 3, 1], [-1, 0, 0, 1, 2, 2])
        return self._agrees(lambda probe: probe.forward_tree(tree), lambda probe: probe.verify_branches(tree))

    @cached_property
    def takes_chunks(self) -> bool:
        """Whether a model whose state is not keys and values computes several tokens on top of it."""
        tokens = [2, 3, 1, 0]

        def one_by_one(probe: HuggingFaceSequence) -> Output:
            return Output(torch.cat([probe.forward([token]).logits for token in tokens]))

        return self._agrees(lambda probe: probe.forward(tokens), one_by_one)

    def _agrees(self, fast: Any, reference: Any) -> bool:
        """Whether ``fast`` computes what ``reference`` does, on a short sequence of its own."""
        results = []
        for compute in (reference, fast):
            probe = self.open()
            probe.compute(Prompt([2, 1, 3, 0, 2, 3]))
            probe.mark()
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
