"""The fast path: Llama, Mistral, Qwen2 and Qwen3 without the modules of transformers.

What it saves per step is dispatch: projections that read the same input are one product, keys and values of all layers
lie in one preallocated tensor, rotations are one complex product, masks and positions are made once per step. On a CPU
attention runs in float32 whatever the dtype, because half-precision kernels for few queries are several times slower.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ianvs_specdec.decoding.contracts import Output
from ianvs_specdec.decoding.linear import PACKED_BYTES, Linear
from ianvs_specdec.decoding.tree import TokenTree

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
ROTATIONS = ("default", "linear", "llama3", "yarn")
"""Kinds of rotary embedding whose angles depend on the position alone."""

_FIRST_CAPACITY = 512


@dataclass
class _Layer:
    attention_norm: Tensor
    qkv: Linear
    head_norms: Tensor | None
    output: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear


class FusedTarget:
    """Implements ``contracts.Target`` for a loaded ``transformers`` model that ``fits``; one sequence at a time.

    The model's projections become views of the fused ones, so no weight is held twice, except in the packed layout of
    small models (see ``linear``).
    """

    def __init__(self, model: Any) -> None:
        self.model = model.eval()
        self.config = config = model.config.get_text_config()
        self.window: int | None = config.max_position_embeddings
        self.layers: int = config.num_hidden_layers
        self.embedding: Tensor = model.get_input_embeddings().weight
        self.dtype, self.device = self.embedding.dtype, self.embedding.device
        self._queries: int = config.num_attention_heads
        self._keys: int = config.num_key_value_heads
        self._width = getattr(config, "head_dim", None) or config.hidden_size // self._queries
        self._intermediate: int = config.intermediate_size
        self._epsilon: float = config.rms_norm_eps
        halves = self.dtype in (torch.bfloat16, torch.float16)
        self._attention_dtype = torch.float32 if halves and self.device.type == "cpu" else self.dtype

        pack = sum(p.numel() * p.element_size() for p in model.parameters()) <= PACKED_BYTES
        self._stack = [_fused(layer, pack) for layer in model.model.layers]
        self._norm: Tensor = model.model.norm.weight
        head = model.get_output_embeddings()
        self.unembed = Linear(head.weight, head.bias, pack=pack)
        self._features: tuple[int, ...] = ()
        self._length = 0
        shape = (self.layers, 2 * self._keys, 0, self._width)
        self._cache = torch.empty(shape, dtype=self._attention_dtype, device=self.device)
        self._angles = torch.empty(0)
        self._reserve(_FIRST_CAPACITY)

    @torch.inference_mode()
    def prefill(self, ids: Sequence[int], features: Sequence[int] = ()) -> Output:
        self._features = tuple(features)
        self._length = 0
        self._reserve(len(ids))
        tokens = torch.tensor(ids, device=self.device)
        output = self._forward(tokens, self._angles[: len(ids)], None, last_row=True)
        self._length = len(ids)
        return output

    @torch.inference_mode()
    def verify(self, tree: TokenTree) -> Output:
        """Logits ``[nodes, vocabulary]``; see ``contracts.Target``."""
        start, nodes = self._length, len(tree)
        self._reserve(start + nodes)
        tokens = torch.tensor(tree.tokens, device=self.device)
        if nodes == 1:
            return self._forward(tokens, self._angles[start : start + 1], None)
        mask = torch.zeros(nodes, start + nodes, dtype=self._attention_dtype, device=self.device)
        mask[:, start:].masked_fill_(~tree.mask(self.device), -torch.inf)
        if tree.is_chain:
            return self._forward(tokens, self._angles[start : start + nodes], mask)
        positions = torch.tensor(tree.depths, device=self.device) + start
        return self._forward(tokens, self._angles[positions], mask)

    @torch.inference_mode()
    def commit(self, path: Sequence[int]) -> None:
        start, end = self._length, self._length + len(path)
        if path[-1] != len(path) - 1:
            rows = torch.tensor(path, device=self.device) + start
            self._cache[:, :, start:end] = self._cache[:, :, rows]
        self._length = end

    def _forward(self, tokens: Tensor, angles: Tensor, mask: Tensor | None, *, last_row: bool = False) -> Output:
        """Compute ``tokens`` behind what the cache holds; their keys and values are written, not yet kept."""
        rows, queries, width = len(tokens), self._queries, self._width
        rotated = queries + self._keys
        start, end = self._length, self._length + len(tokens)
        angles = angles[:, None]
        wanted = {index % (self.layers + 1) for index in self._features}
        kept: dict[int, Tensor] = {}
        x = functional.embedding(tokens, self.embedding)
        for index, layer in enumerate(self._stack):
            if index in wanted:
                kept[index] = x
            qkv = layer.qkv(functional.rms_norm(x, layer.attention_norm.shape, layer.attention_norm, self._epsilon))
            qkv = qkv.view(rows, -1, width)
            turned, value = qkv[:, :rotated], qkv[:, rotated:]
            if layer.head_norms is not None:
                turned = functional.rms_norm(turned, (width,), None, self._epsilon) * layer.head_norms
            # Halves to pairs: the rotation is then a product of complex numbers. Queries and keys alike, so that
            # their products stay the same.
            pairs = turned.unflatten(-1, (2, width // 2)).transpose(-1, -2).to(self._attention_dtype).contiguous()
            turned = torch.view_as_real(torch.view_as_complex(pairs) * angles).flatten(-2)
            cache = self._cache[index]
            cache[: self._keys, start:end] = turned[:, queries:].transpose(0, 1)
            cache[self._keys :, start:end] = value.transpose(0, 1)
            attended = functional.scaled_dot_product_attention(
                turned[None, :, :queries].transpose(1, 2),
                cache[None, : self._keys, :end],
                cache[None, self._keys :, :end],
                mask,
                is_causal=mask is None and rows > 1,
                enable_gqa=queries != self._keys,
            )
            attended = attended[0].transpose(0, 1).reshape(rows, -1).to(self.dtype)
            x = layer.output.added(attended, x)
            gate_up = layer.gate_up(functional.rms_norm(x, layer.mlp_norm.shape, layer.mlp_norm, self._epsilon))
            active = functional.silu(gate_up[:, : self._intermediate]) * gate_up[:, self._intermediate :]
            x = layer.down.added(active, x)
        if last_row and self.layers not in wanted:
            x = x[-1:]
        x = functional.rms_norm(x, self._norm.shape, self._norm, self._epsilon)
        kept[self.layers] = x
        logits = self.unembed(x[-1:] if last_row else x)
        return Output(logits, tuple(kept[index % (self.layers + 1)] for index in self._features))

    def _reserve(self, positions: int) -> None:
        """Room for ``positions`` tokens in the cache, what it holds kept, and their rotations."""
        if positions <= self._cache.shape[2]:
            return
        capacity = max(_FIRST_CAPACITY, 2 * positions)
        cache = self._cache.new_empty((*self._cache.shape[:2], capacity, self._width))
        cache[:, :, : self._length] = self._cache[:, :, : self._length]
        self._cache = cache
        self._angles = rotations(self.model, capacity)


def rotations(model: Any, positions: int) -> Tensor:
    """The rotary embedding as complex factors ``[positions, head_dim / 2]`` of the model's own angles and scale."""
    where = torch.arange(positions, device=model.device)[None]
    like = torch.empty(0, dtype=torch.float32, device=model.device)
    cosine, sine = (part[0, :, : part.shape[-1] // 2] for part in model.model.rotary_emb(like, where))
    kind = torch.float64 if model.dtype == torch.float64 else torch.float32
    return torch.complex(cosine.to(kind), sine.to(kind))


def fits(model: Any) -> bool:
    """Whether ``model``, a ``transformers`` causal LM, is made of exactly what ``FusedTarget`` computes."""
    config = model.config.get_text_config()
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    sliding = any(layer != "full_attention" for layer in getattr(config, "layer_types", None) or ())
    sliding = sliding or (config.model_type == "mistral" and config.sliding_window is not None)
    if config.model_type not in FAMILIES or kind not in ROTATIONS or sliding or config.hidden_act != "silu":
        return False
    linears = [
        module
        for layer in model.model.layers
        for name, module in layer.named_modules()
        if name.endswith("_proj") or isinstance(module, torch.nn.Linear)
    ]
    whole = len({p.device for p in model.parameters()} | {p.dtype for p in model.parameters()}) == 2
    plain = all(type(module) is torch.nn.Linear for module in [*linears, model.get_output_embeddings()])
    return whole and plain and model.dtype.is_floating_point and not _agreement_missing(model)


def _agreement_missing(model: Any) -> bool:
    """Whether the fast path computes anything but what the model itself does, on a few tokens."""
    tokens = [1, 2, 3, 0, 2, 1]
    with torch.inference_mode():
        expected = model(torch.tensor([tokens], device=model.device)).logits[0, -3:].float()
        target = FusedTarget(model)
        target.prefill(tokens[:3])
        got = target.verify(TokenTree.chain(tokens[3], tokens[4:])).logits.float()
    tolerance = 1e-3 if model.dtype in (torch.float32, torch.float64) else 1e-1
    return not bool((got - expected).abs().max() <= tolerance * expected.std())


def _fused(layer: Any, pack: bool) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    norms = None
    if hasattr(attention, "q_norm"):
        queries, keys = attention.config.num_attention_heads, attention.config.num_key_value_heads
        norms = torch.stack([attention.q_norm.weight] * queries + [attention.k_norm.weight] * keys).detach()
    return _Layer(
        layer.input_layernorm.weight,
        _joined([attention.q_proj, attention.k_proj, attention.v_proj], pack),
        norms,
        Linear(attention.o_proj.weight, attention.o_proj.bias, pack=pack),
        layer.post_attention_layernorm.weight,
        _joined([mlp.gate_proj, mlp.up_proj], pack),
        Linear(mlp.down_proj.weight, mlp.down_proj.bias, pack=pack),
    )


def _joined(modules: list[torch.nn.Linear], pack: bool) -> Linear:
    """One product for several with the same input. The modules' weights become views of the joined one."""
    weights = [module.weight for module in modules]
    sizes = [len(weight) for weight in weights]
    joined = weights[0].detach()
    if weights[0].untyped_storage().data_ptr() != weights[1].untyped_storage().data_ptr():
        joined = torch.cat([weight.detach() for weight in weights])
        for weight, part in zip(weights, joined.split(sizes), strict=True):
            weight.data = part
    else:  # joined by an earlier target over the same model
        joined = joined.as_strided((sum(sizes), joined.shape[1]), joined.stride())
    biases = [module.bias for module in modules if module.bias is not None]
    return Linear(joined, torch.cat([bias.detach() for bias in biases]) if biases else None, pack=pack)
