"""Heads as modules whose state dicts are the official checkpoints (parameters and buffers of the same names).

Each computes, for every start in a batch, the logits of ``steps`` drafts in a row as at inference: after the first, an
EAGLE head reads its own outputs instead of the target's features ("training-time test" of EAGLE-3, arXiv 2503.01840;
HASS, arXiv 2408.15766). The tokens between are the target's, since drafts after a wrong one do not matter.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRotaryEmbedding

from ianvs_specdec.training.heads.pool import Batch

Draft = tuple[Tensor, Tensor | None]
"""Logits ``[selected starts, vocabulary]`` of one draft, and the head's predicted feature, if any."""


class TrainableHead(nn.Module):
    """``kept``: the target's token ids that the head can draft, ascending, None = all; its logits are theirs.
    ``most_starts`` of a sample are used per step, None = all."""

    most_starts: int | None = None
    kept: Tensor | None

    def __init__(self, kept: Tensor | None = None) -> None:
        super().__init__()
        self.register_buffer("kept", kept, persistent=False)

    @abstractmethod
    def drafts(self, batch: Batch) -> Iterator[Draft]:
        """Drafts in order, one per row of ``batch.valid``, at the starts that are valid there; ends at the first row
        without any."""

    def output_matrices(self) -> list[Tensor]:
        """The parameters ``[vocabulary, hidden]`` that compute logits."""
        return []


class Norm(nn.RMSNorm):
    def forward(self, x: Tensor) -> Tensor:
        # Under autocast x is bf16 and the weight is not; of mixed types PyTorch has no fused norm.
        return functional.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


class Attention(nn.Module):
    def __init__(self, config: Any, inputs: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.size = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.q_proj = nn.Linear(inputs, self.heads * self.size, bias=False)
        self.k_proj = nn.Linear(inputs, self.kv_heads * self.size, bias=False)
        self.v_proj = nn.Linear(inputs, self.kv_heads * self.size, bias=False)
        self.o_proj = nn.Linear(self.heads * self.size, config.hidden_size, bias=False)

    def project(self, x: Tensor, rotary: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Keys and values ``[rows, kv heads, positions, size]`` of inputs ``[rows, positions, inputs]``."""
        shape = (*x.shape[:2], self.kv_heads, self.size)
        key = self.k_proj(x).view(shape).transpose(1, 2)
        return rotate(key, rotary), self.v_proj(x).view(shape).transpose(1, 2)

    def forward(
        self,
        x: Tensor,
        rotary: tuple[Tensor, Tensor],
        past: tuple[Tensor, Tensor],
        seen: Tensor,
        chain: tuple[Tensor, Tensor] | None,
    ) -> Tensor:
        """Attention of one position per start to the ``past`` up to the start (``seen``, bool ``[rows, starts,
        positions]``) and to the start's own ``chain`` of drafts ``[rows, kv heads, starts, drafts, size]``."""
        rows, starts, _ = x.shape
        query = rotate(self.q_proj(x).view(rows, starts, self.heads, self.size).transpose(1, 2), rotary)
        query = query.view(rows, self.kv_heads, -1, starts, self.size) * self.size**-0.5
        keys, values = past
        scores = query @ keys.transpose(-1, -2)[:, :, None]
        scores = scores.masked_fill(~seen[:, None, None], -torch.inf)
        if chain is not None:
            own = torch.einsum("bhgsd,bhsmd->bhgsm", query, chain[0])
            scores = torch.cat([scores, own], -1)
        weights = scores.float().softmax(-1).to(values.dtype)
        length = keys.shape[2]
        out = weights[..., :length] @ values[:, :, None]
        if chain is not None:
            out = out + torch.einsum("bhgsm,bhsmd->bhgsd", weights[..., length:], chain[1])
        return self.o_proj(out.reshape(rows, self.heads, starts, self.size).transpose(1, 2).flatten(2))


class HeadLayer(nn.Module):
    def __init__(self, config: Any, inputs: int) -> None:
        super().__init__()
        self.self_attn = Attention(config, inputs)
        self.mlp = LlamaMLP(config)
        self.post_attention_layernorm = Norm(config.hidden_size, eps=config.rms_norm_eps)
        if inputs != config.hidden_size:
            self.hidden_norm = Norm(config.hidden_size, eps=config.rms_norm_eps)
            self.input_layernorm = Norm(config.hidden_size, eps=config.rms_norm_eps)

    def rest(self, residual: Tensor, attended: Tensor) -> Tensor:
        residual = residual + attended
        return residual + self.mlp(self.post_attention_layernorm(residual))


class _AnyEagle(TrainableHead):
    """Common base of both kinds of EAGLE head: the chain of drafts through one decoder layer."""

    def __init__(self, config: Any, kept: Tensor | None = None) -> None:
        super().__init__(kept)
        self._rotary = LlamaRotaryEmbedding(config=config)

    @abstractmethod
    def _embed(self, tokens: Tensor) -> Tensor: ...

    @abstractmethod
    def _first(self, batch: Batch, embedded: Tensor) -> tuple[Tensor, Tensor]:
        """Residual and attention input of the pairs (token i+1, feature i), ``[rows, positions - 1, ...]``."""

    @abstractmethod
    def _next(self, embedded: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
        """The same for a token and the head's own output before it."""

    @abstractmethod
    def _draft(self, out: Tensor) -> Draft: ...

    def drafts(self, batch: Batch) -> Iterator[Draft]:
        layer = self._decoder()
        places = torch.arange(batch.tokens.shape[1] - 1, device=batch.tokens.device)
        residuals, inputs = self._first(batch, self._embed(batch.tokens[:, 1:]))
        past = layer.self_attn.project(inputs, self._rotary(inputs, places[None]))
        residual, attended = batch.at(residuals, 0), batch.at(inputs, 0)
        seen = places <= batch.starts[..., None]
        chain: tuple[Tensor, Tensor] | None = None
        for step, (valid, width) in enumerate(zip(batch.valid, batch.widths, strict=True)):
            if not width:
                return
            residual, attended, seen = residual[:, :width], attended[:, :width], seen[:, :width]
            rotary = self._rotary(attended, batch.starts[:, :width] + step)
            if step:
                key, value = (part[:, :, :, None] for part in layer.self_attn.project(attended, rotary))
                if chain is not None:
                    key, value = (
                        torch.cat([old[:, :, :width], new], 3) for old, new in zip(chain, (key, value), strict=True)
                    )
                chain = key, value
            out = layer.rest(residual, layer.self_attn(attended, rotary, past, seen, chain))
            yield self._draft(out[valid[:, :width]])
            if any(batch.widths[step + 1 :]):
                residual, attended = self._next(self._embed(batch.at(batch.tokens, step + 2, width)), out)

    @abstractmethod
    def _decoder(self) -> HeadLayer: ...


class TrainableEagle(_AnyEagle):
    """EAGLE and EAGLE-2 (arXiv 2401.15077, 2406.16858): predicts the target's next feature; the target unembeds it.

    ``fc`` has no bias. The layer starts as the identity after ``fc``.
    """

    _unembedding: Tensor

    def __init__(self, config: Any, embedding: Tensor, unembedding: Tensor) -> None:
        super().__init__(config)
        hidden = config.hidden_size
        self.embed_tokens = nn.Embedding.from_pretrained(embedding.float(), freeze=True)
        self.fc = nn.Linear(2 * hidden, hidden, bias=False)
        layer = HeadLayer(config, hidden)
        self.layers = nn.ModuleList([layer])
        self.register_buffer("_unembedding", unembedding.float(), persistent=False)
        quiet(layer)
        with torch.no_grad():
            self.fc.weight.normal_(std=0.5 * (2 * hidden) ** -0.5)

    def _decoder(self) -> HeadLayer:
        layer: Any = self.layers[0]
        return layer

    def _embed(self, tokens: Tensor) -> Tensor:
        return self.embed_tokens(tokens)

    def _first(self, batch: Batch, embedded: Tensor) -> tuple[Tensor, Tensor]:
        return self._next(embedded, batch.features[:, :-1])

    def _next(self, embedded: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
        x = self.fc(torch.cat([embedded.to(out.dtype), out], -1))
        return x, x

    def _draft(self, out: Tensor) -> Draft:
        return functional.linear(out, self._unembedding), out


class TrainableEagle3(_AnyEagle):
    """EAGLE-3 (arXiv 2503.01840): reads three layers of the target, has its own output matrix.

    Norm and output matrix start as the target's. ``kept`` are the ids of the draft vocabulary, None = the target's.
    """

    _embedding: Tensor

    def __init__(
        self, config: Any, embedding: Tensor, unembedding: Tensor, norm: Tensor, kept: Tensor | None = None
    ) -> None:
        super().__init__(config, kept)
        if kept is not None:
            self.register_buffer("d2t", kept - torch.arange(len(kept)))
            self.register_buffer("t2d", torch.zeros(len(unembedding), dtype=torch.bool).index_fill(0, kept, True))
            unembedding = unembedding[kept]
        hidden = config.hidden_size
        self.fc = nn.Linear(3 * hidden, hidden, bias=False)
        self.midlayer = HeadLayer(config, 2 * hidden)
        self.norm = Norm(hidden, eps=config.rms_norm_eps)
        self.lm_head = nn.Linear(hidden, len(unembedding), bias=False)
        self.register_buffer("_embedding", embedding.float(), persistent=False)
        quiet(self.midlayer)
        with torch.no_grad():
            self.fc.weight.normal_(std=(3 * hidden) ** -0.5)
            self.norm.weight.copy_(norm)
            self.lm_head.weight.copy_(unembedding)

    def _decoder(self) -> HeadLayer:
        return self.midlayer

    def _embed(self, tokens: Tensor) -> Tensor:
        return functional.embedding(tokens, self._embedding)

    def _first(self, batch: Batch, embedded: Tensor) -> tuple[Tensor, Tensor]:
        return self._next(embedded, self.fc(batch.layers[:, :-1]))

    def _next(self, embedded: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
        layer = self.midlayer
        return out, torch.cat([layer.input_layernorm(embedded.to(out.dtype)), layer.hidden_norm(out)], -1)

    def _draft(self, out: Tensor) -> Draft:
        return self.lm_head(self.norm(out)), None

    def output_matrices(self) -> list[Tensor]:
        return [self.lm_head.weight]


class _Residual(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden, hidden)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + functional.silu(self.linear(x))


class TrainableMedusa(TrainableHead):
    """Medusa (arXiv 2401.10774): head i predicts the token i + 2 after the target's last hidden state.

    Children are named "0", "1", ... as in the official files. Heads start as the target's own output matrix.
    """

    def __init__(self, hidden: int, unembedding: Tensor, *, heads: int, blocks: int) -> None:
        super().__init__()
        self.heads, self.blocks = heads, blocks
        for index in range(heads):
            output = nn.Linear(hidden, len(unembedding), bias=False)
            with torch.no_grad():
                output.weight.copy_(unembedding)
            self.add_module(str(index), nn.Sequential(*(_Residual(hidden) for _ in range(blocks)), output))

    def drafts(self, batch: Batch) -> Iterator[Draft]:
        features = batch.at(batch.features, 0)
        # Head i reads the feature that selected the root: the one at the start.
        for head, valid in zip(self.children(), batch.valid, strict=False):
            yield head(features[valid]), None

    def output_matrices(self) -> list[Tensor]:
        return [self.get_parameter(f"{index}.{self.blocks}.weight") for index in range(self.heads)]


def quiet(layer: HeadLayer) -> None:
    """Initialize a layer as the identity: it adds nothing to its residual stream."""
    for parameter in layer.parameters():
        if parameter.ndim == 2:
            nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
    nn.init.zeros_(layer.self_attn.o_proj.weight)
    nn.init.zeros_(layer.mlp.down_proj.weight)


def rotate(x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary position embedding of ``[rows, heads, positions, size]`` (RoFormer, arXiv 2104.09864; halves layout)."""
    cos, sin = (part[:, None].to(x.dtype) for part in rotary)
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], -1) * sin
