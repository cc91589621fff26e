"""What an EAGLE head computes, in few operators.

A head is one Llama layer over pairs of a token and a feature. A step of it costs a CPU more in dispatch than in
arithmetic, so everything that is constant is folded before the first request: the part of the projections that depends
on the token alone is a table; the target's output matrix and the projections that read the same hidden state are one
product; the weights of norms and the scale of attention are in the products behind them. Queries and keys are laid out
in pairs, so that their rotation is one complex product. Since there is one layer only, pairs whose output nobody asks
for get their keys and values and nothing else.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from ianvs_specdec.checkpoints.layout import ModelSizes
from ianvs_specdec.decoding.contracts import Target
from ianvs_specdec.decoding.linear import Linear
from ianvs_specdec.drafters.eagle.checkpoint import EagleCheckpoint
from ianvs_specdec.drafters.eagle.layout import check_fit
from ianvs_specdec.drafters.eagle.weights import FoldedWeights

_CACHED_WEIGHT = 1 << 20
_FOLDED_TABLE = 1 << 25


class _Product:
    """``x [rows, in] @ weight.T`` in the target's type; single rows in float32 where the weight stays in a CPU's cache,
    which is faster there."""

    def __init__(self, weight: Tensor, dtype: torch.dtype) -> None:
        small = weight.device.type == "cpu" and weight.numel() <= _CACHED_WEIGHT and dtype != torch.float64
        self._single = weight.T.float().contiguous() if small else None
        self._dtype = dtype
        self._rows = Linear(weight.to(dtype))

    def __call__(self, x: Tensor) -> Tensor:
        if self._single is not None and x.shape[0] == 1:
            return torch.mm(x, self._single)
        return self._rows(x.to(self._dtype))

    def added(self, x: Tensor, residual: Tensor) -> Tensor:
        """The product plus ``residual`` ``[rows, out]``, in the type of the residual."""
        if self._single is not None and x.shape[0] == 1:
            return torch.addmm(residual, x, self._single)
        if self._dtype == residual.dtype:
            return self._rows.added(x, residual)
        return residual + self._rows(x.to(self._dtype))


class EagleHead:
    """The weights of a head, fitted to a target. Sequences have their state in ``HeadSequence``.

    Outside of the products everything is computed in float32 (float64 for a target in float64): ``work``.
    """

    @torch.inference_mode()
    def __init__(self, checkpoint: EagleCheckpoint, target: Target) -> None:
        vocabulary, hidden = target.embedding.shape
        sizes = ModelSizes(vocabulary, hidden, target.layers)
        embedded = "embed_tokens.weight" in checkpoint.tensors
        check_fit(checkpoint.folder, checkpoint.config, sizes, eagle3=checkpoint.eagle3, embedded=embedded)
        self.config = config = checkpoint.config
        self.device = target.device
        self.work = torch.float64 if target.dtype == torch.float64 else torch.float32
        self.eagle3 = checkpoint.eagle3
        self.features = _features(target.layers) if self.eagle3 else (-1,)
        self._dtype = target.dtype
        self._root = math.sqrt(config.hidden)
        self._epsilon_length = torch.tensor(math.sqrt(config.epsilon) * self._root, dtype=self.work, device=self.device)
        weights = FoldedWeights(checkpoint, self.device, self._root)
        from_hidden = self._fold_inputs(weights, target)
        self._fold_outputs(weights, target, from_hidden)
        self._output = self._product(weights["self_attn.o_proj"])
        self._down = self._product(weights["mlp.down_proj"])
        self._gate_up = self._product(weights.normed("post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj"))

    def absorb(self, features: Sequence[Tensor]) -> Tensor:
        """The hidden states ``[rows, hidden]`` that the target's own ``features``, each ``[rows, target hidden]``,
        stand for."""
        if self._join is None:
            return features[0].to(self.work)
        return self._join(torch.cat(list(features), dim=-1).to(self.work)).to(self.work)

    def carry(self, hidden: Tensor) -> Tensor:
        """What hidden states ``[rows, hidden]`` bring into the layer for the token that follows them; see ``entry``."""
        return self._enter(self._seen(hidden))

    def look(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """``carry`` and the logits ``[rows, draft vocabulary]`` of the token after each of the hidden states."""
        seen = self._seen(hidden)
        if self._target is not None:
            return self._enter(seen), self._target.unembed(seen.to(self._dtype))
        both = self._look(seen)
        return both[:, : self.entry_width], both[:, self.entry_width :]

    def entry(self, tokens: Tensor) -> Tensor:
        """What token ids ``[rows]`` bring into the layer. Together with the carried part this is ``[rows,
        entry_width]``: the layer's residual input (not in EAGLE-3, where the hidden state is it), queries, keys and
        values, in pairs and scaled."""
        if self._table is not None:
            return self._table.index_select(0, tokens)
        return self._enter_token(self._token_input(self._embedding[tokens].to(self.work))) + self._entry_bias

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """Hidden states ``[rows, hidden]`` after the layer, from its residual input and what attention returned."""
        x = self._output.added(attended, x)
        gate_up = self._gate_up(self._normed(x))
        half = self.config.intermediate
        return self._down.added(functional.silu(gate_up[:, :half]).mul_(gate_up[:, half:]), x)

    def target_ids(self, draft_ids: Tensor) -> Tensor:
        """Ids of the target's vocabulary for ids of the draft vocabulary."""
        return draft_ids if self.vocabulary_map is None else self.vocabulary_map[draft_ids]

    def angles(self, positions: int) -> Tensor:
        """The rotary embedding as complex factors ``[positions, 1, width / 2]``."""
        from transformers import LlamaConfig
        from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

        rotary = LlamaRotaryEmbedding(LlamaConfig(**self.config.llama))
        cosine, sine = rotary(torch.empty(0), torch.arange(positions)[None])
        half = self.config.width // 2
        factors = torch.complex(cosine[0, :, :half].to(self.work), sine[0, :, :half].to(self.work))
        return factors[:, None].to(self.device)

    def _fold_inputs(self, weights: FoldedWeights, target: Target) -> Tensor:
        from_token, from_hidden, bias = weights.entries()
        self.entry_width = len(from_token)
        self._enter = self._product(from_hidden)
        self._join = self._product(weights.tensor("fc.weight")) if self.eagle3 else None
        embedding = weights.get("embed_tokens.weight")
        embedding = target.embedding.detach() if embedding is None else embedding
        self._table: Tensor | None = None
        if len(embedding) * self.entry_width <= _FOLDED_TABLE:
            table = self._token_input(embedding.to(from_token.dtype)) @ from_token.T + bias
            self._table = table.to(self.work)
        else:
            self._embedding, self._enter_token = embedding.to(self._dtype), self._product(from_token)
            self._entry_bias = bias.to(self.work)
        return from_hidden

    def _fold_outputs(self, weights: FoldedWeights, target: Target, from_hidden: Tensor) -> None:
        hidden = target.embedding.shape[1]
        zero = torch.zeros(1, hidden, dtype=target.dtype, device=self.device)
        bias = target.unembed(zero)
        self.vocabulary = bias.shape[-1]
        self.vocabulary_map: Tensor | None = None
        self._target: Target | None = None
        if self.eagle3:
            matrix = weights.normed("norm", "lm_head", prefix="")
            offsets = weights.get("d2t")
            if offsets is not None:
                self.vocabulary_map = torch.arange(len(offsets), device=self.device) + offsets
        elif self.vocabulary * hidden <= _FOLDED_TABLE and not bool(bias.any()):
            matrix = target.unembed(torch.eye(hidden, dtype=target.dtype, device=self.device)).T
        else:
            # Fitted heads are remembered for as long as the target lives, so they must not keep it alive.
            self._target = weakref.proxy(target)
            return
        self._look = self._product(torch.cat([from_hidden, matrix.to(from_hidden.dtype)]))

    def _product(self, weight: Tensor) -> _Product:
        return _Product(weight, self._dtype)

    def _seen(self, hidden: Tensor) -> Tensor:
        return self._normed(hidden) if self.eagle3 else hidden

    def _token_input(self, embeddings: Tensor) -> Tensor:
        return self._normed(embeddings) if self.eagle3 else embeddings

    def _normed(self, x: Tensor) -> Tensor:
        """Root-mean-square norm without weight, divided by sqrt(hidden): three operators where torch's own has
        eight."""
        return x / torch.linalg.vector_norm(x, 2, -1, True, dtype=x.dtype).hypot_(self._epsilon_length)


def _features(layers: int) -> tuple[int, ...]:
    """The layer inputs that EAGLE-3 reads."""
    return 2, layers // 2, layers - 3
