"""A target over any Hugging Face causal LM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from ianvs_specdec.engine.contracts import Output, StepInput
from ianvs_specdec.engine.rounding import NEAR_TIE, NEAR_TIE_INT8
from ianvs_specdec.targets.huggingface_sequence import HuggingFaceModel, HuggingFaceSequence
from ianvs_specdec.targets.int8 import Int8Module
from ianvs_specdec.targets.states import max_capacity


class HuggingFaceTarget(HuggingFaceModel):
    """Implements ``contracts.Target`` for a loaded ``transformers`` causal LM, one sequence of a step after another."""

    kind: ClassVar[str] = "transformers"
    prompt_rows: ClassVar[int | None] = None

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        quantized = any(isinstance(module, Int8Module) for module in model.modules())
        self.near_tie = NEAR_TIE_INT8 if quantized else NEAR_TIE[model.dtype]

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
        logits = self.model.get_output_embeddings()(hidden)
        # As these families do in the model's own forward. Others give the same names other meanings.
        kind, config = self.config.model_type, self.config
        if kind.startswith("granite"):
            return logits / config.logits_scaling
        if kind.startswith("cohere"):
            return logits * config.logit_scale
        most = getattr(config, "final_logit_softcapping", None) if kind.startswith("gemma") else None
        return logits if most is None else torch.tanh(logits / most) * most

    def warm_up(self, tokens: int) -> None:
        pass  # the model's own modules decide how they compute

    def memory(self, positions: int) -> int:
        # Of other states than keys and values nothing is known before they are there.
        queries = int(getattr(self.config, "num_attention_heads", None) or 1)
        heads = int(getattr(self.config, "num_key_value_heads", None) or queries)
        width = int(getattr(self.config, "head_dim", None) or self.config.hidden_size // queries)
        # Multi-head latent attention is cached expanded, with widths of its own.
        keys, values = (int(getattr(self.config, name, None) or width) for name in ("qk_head_dim", "v_head_dim"))
        return self.layers * heads * (keys + values) * max_capacity(positions) * self.dtype.itemsize

    def open(self, features: Sequence[int] = ()) -> HuggingFaceSequence:
        return HuggingFaceSequence(self, tuple(features))

    @torch.inference_mode()
    def step(self, parts: Sequence[tuple[Any, StepInput]]) -> list[Output]:
        return [sequence.compute(piece) for sequence, piece in parts]


def weights_of(model: Any) -> list[Any]:
    """The weights and buffers of a model of transformers, those in 8-bit integers included."""
    products = [module.product for module in model.modules() if isinstance(module, Int8Module)]
    return [*model.parameters(), *model.buffers(), *products]
