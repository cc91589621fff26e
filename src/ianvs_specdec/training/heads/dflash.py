"""A DFlash head as a module whose state dict is the authors' checkpoint (Chen et al. 2026, arXiv 2602.06036)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from ianvs_specdec.training.heads.models import Attention, Draft, HeadLayer, Norm, TrainableHead, quiet, rotate
from ianvs_specdec.training.heads.pool import Batch

LAYERS = 2
"""Few, since drafting must be cheap relative to a step of a small target."""
DISCOUNT = 0.8
"""Loss weight of a draft relative to the one before; the authors' exp(-1/4) for blocks of 8."""
STARTS_AT_ONCE = 64
"""Blocks per attention, which limits the memory of its scores."""

Context = tuple[Tensor, Tensor]


class _BlockAttention(Attention):
    """Attention with query and key norms, from blocks to the target's earlier positions and within the block."""

    def __init__(self, config: Any) -> None:
        super().__init__(config, config.hidden_size)
        self.q_norm, self.k_norm = (Norm(self.size, eps=config.rms_norm_eps) for _ in range(2))

    def project(self, x: Tensor, rotary: tuple[Tensor, Tensor]) -> Context:
        shape = (*x.shape[:2], self.kv_heads, self.size)
        key = self.k_norm(self.k_proj(x).view(shape)).transpose(1, 2)
        return rotate(key, rotary), self.v_proj(x).view(shape).transpose(1, 2)

    def blocks(self, x: Tensor, rotary: tuple[Tensor, Tensor], past: Context, seen: Tensor) -> Tensor:
        """Attention of inputs ``[rows, starts * block, hidden]``; ``seen [rows, starts, positions]``."""
        rows, starts, positions = seen.shape
        query = self.q_norm(self.q_proj(x).view(*x.shape[:2], self.heads, self.size)).transpose(1, 2)
        query = rotate(query, rotary) * self.size**-0.5
        query = query.view(rows, self.kv_heads, -1, starts, x.shape[1] // starts, self.size)
        own_keys, own_values = (part.unflatten(2, (starts, -1))[:, :, None] for part in self.project(x, rotary))
        keys, values = (part[:, :, None, None] for part in past)
        scores = (query @ keys.mT).masked_fill(~seen[:, None, None, :, None], -torch.inf)
        weights = torch.cat([scores, query @ own_keys.mT], -1).float().softmax(-1).to(values.dtype)
        out = weights[..., :positions] @ values + weights[..., positions:] @ own_values
        return self.o_proj(out.reshape(rows, self.heads, -1, self.size).transpose(1, 2).flatten(2))


class _BlockLayer(HeadLayer):
    self_attn: _BlockAttention

    def __init__(self, config: Any) -> None:
        super().__init__(config, config.hidden_size)
        self.self_attn = _BlockAttention(config)
        self.input_layernorm = Norm(config.hidden_size, eps=config.rms_norm_eps)
        quiet(self)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], past: Context, seen: Tensor) -> Tensor:
        return self.rest(x, self.self_attn.blocks(self.input_layernorm(x), rotary, past, seen))


class TrainableDFlash(TrainableHead):
    """Drafts the ``drafts`` tokens after a start at once, from the target's ``inputs``: indices of ``hidden_states``.

    The norm starts as the target's; embedding and output matrix are the target's and fixed.
    """

    most_starts = 128
    """Neighbouring blocks teach much the same, and each costs a full block."""
    _embedding: Tensor
    _unembedding: Tensor

    def __init__(
        self, config: Any, model: Any, inputs: Sequence[int], *, drafts: int, mask: int, layers: int = LAYERS
    ) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.block, self.mask, self.inputs = drafts + 1, mask, inputs
        self.fc = nn.Linear(len(inputs) * hidden, hidden, bias=False)
        self.hidden_norm, self.norm = (Norm(hidden, eps=config.rms_norm_eps) for _ in range(2))
        self.layers = nn.ModuleList(_BlockLayer(config) for _ in range(layers))
        self._rotary = LlamaRotaryEmbedding(config=config)
        self.register_buffer("_embedding", model.get_input_embeddings().weight.detach().float(), persistent=False)
        self.register_buffer("_unembedding", model.get_output_embeddings().weight.detach().float(), persistent=False)
        with torch.no_grad():
            self.fc.weight.normal_(std=(len(inputs) * hidden) ** -0.5)
            self.norm.weight.copy_(model.base_model.norm.weight)

    def drafts(self, batch: Batch) -> Iterator[Draft]:
        context = self.hidden_norm(self.fc(batch.layers))
        places = torch.arange(context.shape[1], device=context.device)
        rotary = self._rotary(context, places[None])
        stack: Any = self.layers
        past = [layer.self_attn.project(context, rotary) for layer in stack]
        parts = batch.starts[:, : batch.widths[0]].split(STARTS_AT_ONCE, dim=1)
        states = torch.cat([self._blocks(batch.tokens, starts, places, past) for starts in parts], 1)
        for step, (valid, width) in enumerate(zip(batch.valid, batch.widths, strict=True)):
            if not width:
                return
            chosen = states[:, :width, step + 1][valid[:, :width]]
            yield functional.linear(self.norm(chosen), self._unembedding), None

    def _blocks(self, tokens: Tensor, starts: Tensor, places: Tensor, past: Sequence[Context]) -> Tensor:
        """States ``[rows, starts, block, hidden]`` of the blocks after ``starts [rows, starts]``."""
        roots = tokens.gather(1, (starts + 1).clamp(max=tokens.shape[1] - 1))
        ids = functional.pad(roots[..., None], (0, self.block - 1), value=self.mask).flatten(1)
        x = functional.embedding(ids, self._embedding)
        within = torch.arange(1, self.block + 1, device=starts.device)
        rotary = self._rotary(x, (starts[..., None] + within).flatten(1))
        for layer, own in zip(self.layers, past, strict=True):
            x = layer(x, rotary, own, places <= starts[..., None])
        return x.unflatten(1, (-1, self.block))
