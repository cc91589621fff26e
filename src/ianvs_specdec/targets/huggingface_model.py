"""What a sequence has to know of a ``transformers`` causal LM."""

from __future__ import annotations

import inspect
from functools import cached_property
from typing import Any

import torch

from ianvs_specdec.models.rotary import rotary, window_of


class HuggingFaceModel:
    """``takes_trees``: whether the model computes a branching tree in one forward; ``takes_chunks``, of one whose state
    is not keys and values: several tokens on top of it. None until a sequence has found out.

    The model is put into evaluation mode and otherwise left as it is.
    """

    def __init__(self, model: Any) -> None:
        self.model = model.eval()
        self.config = model.config.get_text_config()
        self.window: int | None = window_of(self.config)
        self.turn = _turning_point(self.config)
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


def _turning_point(config: Any) -> int | None:
    """The length from which on a model's rotary embedding is another one for all positions; None if there is none."""
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    by_layer = [kind for kind in rope.values() if isinstance(kind, dict)] or [rope]
    turning = [kind for kind in by_layer if kind.get("rope_type", kind.get("type")) == "longrope"]
    if not turning:
        return None
    stated = turning[0].get("original_max_position_embeddings")
    return int(stated or getattr(config, "original_max_position_embeddings", config.max_position_embeddings))
