"""The fast path: Llama, Mistral, Qwen2 and Qwen3 without the modules of transformers.

A step of a small model on a CPU, or of any model on a fast GPU, is dispatch more than arithmetic, so what is saved here
is operators: projections that read the same input are one product; the weights of the norms are folded into the
products behind them; queries and keys are laid out in pairs, so that their rotation is one complex product; keys and
values of all layers lie in one preallocated tensor; masks and rotations are made once per step. On a CPU attention runs
in float32 whatever the dtype, because half-precision kernels for few queries are several times slower.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from ianvs_specdec.engine.contracts import Output, StepInput
from ianvs_specdec.engine.rounding import NEAR_TIE, NEAR_TIE_INT8
from ianvs_specdec.models.rotary import window_of
from ianvs_specdec.targets.attention import any_length
from ianvs_specdec.targets.compatibility import agrees, is_plain, paired, rotations
from ianvs_specdec.targets.fused_sequence import FusedSequence, Rows, Views, capacity_for, concatenated, padded
from ianvs_specdec.targets.int8 import Int8Linear
from ianvs_specdec.targets.linear import Linear

_PROMPT_ROWS = 512
"""Tokens of a prompt in one step: others wait for no more, and the products have enough rows to be at full speed."""

Product = Linear | Int8Linear


@dataclass
class _Layer:
    qkv: Product
    head_norms: Tensor | None
    output: Product
    gate_up: Product
    down: Product


class FusedTarget:
    """Implements ``contracts.Target`` for a loaded ``transformers`` model that ``fits``.

    The products of a step are computed for all its sequences at once, attention for one after another.

    The weights are copied into the layout of this class. With ``consume`` the model gives up its own copy layer by
    layer and must not be used for anything else afterwards. ``product`` computes the products with them.
    """

    kind: ClassVar[str] = "fused"
    prompt_rows: ClassVar[int] = _PROMPT_ROWS

    def __init__(self, model: Any, *, consume: bool = False, product: type[Product] = Linear) -> None:
        self.model = model.eval()
        self.config = config = model.config.get_text_config()
        self.window: int | None = window_of(config)
        self.layers: int = config.num_hidden_layers
        self.embedding: Tensor = model.get_input_embeddings().weight.detach()
        self.vocabulary = len(self.embedding)
        self.dtype, self.device = self.embedding.dtype, self.embedding.device
        self._queries: int = config.num_attention_heads
        self._keys: int = config.num_key_value_heads
        self._width: int = getattr(config, "head_dim", None) or config.hidden_size // self._queries
        self._intermediate: int = config.intermediate_size
        self.near_tie = NEAR_TIE_INT8 if product is Int8Linear else NEAR_TIE[self.dtype]
        self._epsilon: float = config.rms_norm_eps
        on_cpu = self.device.type == "cpu"
        self._rotation_dtype = torch.float64 if self.dtype == torch.float64 else torch.float32
        self._attention_dtype = self._rotation_dtype if on_cpu else self.dtype
        # The norm in few operators (see _normed) needs a factor, which goes into the weights, and its epsilon as a
        # length.
        self._root = math.sqrt(config.hidden_size) if on_cpu else 1.0
        self._epsilon_length = torch.tensor(math.sqrt(self._epsilon) * self._root, dtype=self._rotation_dtype)
        self._on_cpu = on_cpu
        self._linear = product

        self._stack = [self._fused(layer, consume) for layer in model.model.layers]
        self._norm: Tensor = model.model.norm.weight.detach()
        head = model.get_output_embeddings()
        self.unembed = product(head.weight.detach(), head.bias)
        if consume and head.weight is not model.get_input_embeddings().weight:
            head.weight.data = head.weight.data.new_empty(0)
        self._angles = torch.empty(0)
        self._compiles = on_cpu and self.dtype != torch.float64
        self._warm: set[int] = set()

    @property
    def weights(self) -> Sequence[Any]:
        # What the model gave up it holds no more; the rest of it is held beside what was copied.
        return self.embedding, self._stack, self._norm, self.unembed, list(self.model.parameters())

    @torch.inference_mode()
    def warm_up(self, tokens: int) -> None:
        # oneDNN compiles for each number of rows; all layers have the same shapes.
        sizes = {min(tokens, self.prompt_rows), tokens % self.prompt_rows} - {0} - self._warm
        if self._compiles:
            self._warm |= sizes
            for rows in sizes:
                self._compile(rows)

    def _compile(self, tokens: int) -> None:
        layer, hidden = self._stack[0], self.config.hidden_size
        narrow = self.embedding.new_zeros(tokens, hidden)
        layer.qkv(narrow)
        layer.gate_up(narrow)
        layer.output.added(self.embedding.new_zeros(tokens, self._queries * self._width), narrow)
        layer.down.added(self.embedding.new_zeros(tokens, self._intermediate), narrow)

    def memory(self, positions: int) -> int:
        return self.layers * 2 * self._keys * capacity_for(positions) * self._width * self._attention_dtype.itemsize

    def open(self, features: Sequence[int] = ()) -> FusedSequence:
        shape = (self.layers, 2 * self._keys, 0, self._width)
        cache = torch.empty(shape, dtype=self._attention_dtype, device=self.device)
        return FusedSequence(cache, tuple(index % (self.layers + 1) for index in features), self.window)

    @torch.inference_mode()
    def step(self, parts: Sequence[tuple[Any, StepInput]]) -> list[Output]:
        rows = [Rows.of(sequence, piece) for sequence, piece in parts]
        needed = max(part.end for part in rows)
        if needed > len(self._angles):
            self._angles = rotations(self.model, capacity_for(needed))
        with any_length(self.device):
            outputs = self._forward(rows)
        for part in rows:
            part.sequence.computed(part.piece)
        return outputs

    def _forward(self, parts: list[Rows]) -> list[Output]:
        """Compute the parts' tokens behind what their sequences hold; their keys and values are written, not yet
        kept."""
        sizes = [len(part.tokens) for part in parts]
        # One sequence alone has few shapes, and pays for no unused row.
        spare = 0 if len(parts) == 1 else padded(sum(sizes)) - sum(sizes)
        nobody = self.embedding.new_zeros(spare, self._queries * self._width, dtype=self._attention_dtype)
        joined = concatenated([part.tokens for part in parts], [parts[0].tokens.new_zeros(spare)])
        angles = concatenated([part.angles(self._angles) for part in parts], [self._angles[:1].expand(spare, -1)])
        rows, queries = len(joined), self._queries
        # Values are turned with the rest, by nothing.
        turns = angles.new_ones(rows, queries + 2 * self._keys, angles.shape[-1])
        turns[:, : queries + self._keys] = angles[:, None]
        turns = turns.view(rows, -1)
        views = [part.views(self._queries, self._keys) for part in parts]
        features = {index for part in parts for index in part.sequence.features}
        kept: dict[int, Tensor] = {}
        x = functional.embedding(joined, self.embedding)
        for index, layer in enumerate(self._stack):
            if index in features:
                kept[index] = x
            qkv = layer.qkv(self._normed(x)).to(self._rotation_dtype)
            if layer.head_norms is not None:
                self._norm_heads(qkv, layer.head_norms)
            torch.view_as_complex(qkv.view(rows, -1, 2)).mul_(turns)
            heads = qkv.view(rows, -1, self._width).transpose(0, 1)
            each = heads[:, : rows - spare].split(sizes, dim=1)
            attended = concatenated([self._attend(index, *pair) for pair in zip(each, views, strict=True)], [nobody])
            x = layer.output.added(attended.to(self.dtype), x)
            gate_up = layer.gate_up(self._normed(x))
            active = functional.silu(gate_up[:, : self._intermediate]).mul_(gate_up[:, self._intermediate :])
            x = layer.down.added(active, x)
        return self._outputs(parts, x, kept)

    def _attend(self, layer: int, heads: Tensor, view: Views) -> Tensor:
        """Attention ``[rows, heads * width]`` of one sequence's rows, whose keys and values are written."""
        view.slots[layer].copy_(heads[self._queries :])
        queries, rows = heads[: self._queries].to(self._attention_dtype), heads.shape[1]
        if not view.causal:
            # Heads that share keys become rows: kernels with masks do not support groups.
            queries = queries.reshape(self._keys, -1, self._width)
        attended = functional.scaled_dot_product_attention(
            queries[None],
            view.keys[layer],
            view.values[layer],
            view.mask,
            is_causal=view.causal,
            enable_gqa=len(queries) != self._keys,
        )
        return attended.reshape(self._queries, rows, -1).transpose(0, 1).reshape(rows, -1)

    def _outputs(self, parts: list[Rows], x: Tensor, kept: dict[int, Tensor]) -> list[Output]:
        """What each sequence asked for of the last layer's output ``x``, logits of the rows that need them only."""
        sizes = [len(part.tokens) for part in parts]
        ends = list(accumulate(sizes))
        wanted = [part.wanted(end) for part, end in zip(parts, ends, strict=True)]
        rows = [row for each in wanted for row in each]
        everywhere = any(self.layers in part.sequence.features for part in parts)
        count, all_of_them = len(rows), len(rows) == ends[-1]
        if len(parts) > 1:
            rows += rows[:1] * (padded(count) - count)
        if not (everywhere or all_of_them):
            x = x[rows]
        x = functional.rms_norm(x, self._norm.shape, self._norm, self._epsilon)
        kept[self.layers] = x
        picked = x[rows] if everywhere and not all_of_them else x
        logits = self.unembed(picked) if rows else x.new_empty(0, len(self.embedding))
        each = logits[:count].split([len(some) for some in wanted])
        return [
            Output(some, tuple(kept[index][end - size : end] for index in part.sequence.features))
            for part, some, size, end in zip(parts, each, sizes, ends, strict=True)
        ]

    def _normed(self, x: Tensor) -> Tensor:
        """Root-mean-square norm without weight; on a CPU times 1 / sqrt(hidden)."""
        if not self._on_cpu:
            return functional.rms_norm(x, x.shape[-1:], None, self._epsilon)
        # Three operators where torch's own has eight on a CPU.
        length = torch.linalg.vector_norm(x, 2, -1, True, dtype=self._rotation_dtype)
        return (x / length.hypot_(self._epsilon_length)).to(self.dtype)

    def _norm_heads(self, qkv: Tensor, weights: Tensor) -> None:
        """Qwen3 norms every query and key head, in place here."""
        heads = qkv.view(len(qkv), -1, self._width)[:, : len(weights)]
        heads.copy_(functional.rms_norm(heads, heads.shape[-1:], None, self._epsilon) * weights)

    def _fused(self, layer: Any, consume: bool) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp
        queries, keys, values = attention.q_proj, attention.k_proj, attention.v_proj
        norms = None
        if hasattr(attention, "q_norm"):
            weights = [attention.q_norm.weight] * self._queries + [attention.k_norm.weight] * self._keys
            norms = torch.stack([paired(weight.detach(), self._width) for weight in weights]).to(self._rotation_dtype)
        before_attention, before_mlp = layer.input_layernorm.weight, layer.post_attention_layernorm.weight
        fused = _Layer(
            self._product([queries, keys, values], before_attention, pairs=2),
            norms,
            self._product([attention.o_proj]),
            self._product([mlp.gate_proj, mlp.up_proj], before_mlp),
            self._product([mlp.down_proj]),
        )
        if consume:
            for module in (queries, keys, values, attention.o_proj, mlp.gate_proj, mlp.up_proj, mlp.down_proj):
                module.weight.data = module.weight.data.new_empty(0)
        return fused

    def _product(self, modules: list[torch.nn.Linear], norm: Tensor | None = None, pairs: int = 0) -> Product:
        """One product for all ``modules``, the first ``pairs`` of them in pairs, the weight of the norm before them
        folded in."""
        weights, biases = [], []
        for index, module in enumerate(modules):
            parts = [module.weight.detach(), *([] if module.bias is None else [module.bias.detach()])]
            if index < pairs:
                parts = [paired(part, self._width) for part in parts]
            weights.append(parts[0])
            biases += parts[1:]
        weight = torch.cat(weights)
        if norm is not None:
            weight = (weight * (norm.detach().to(self._rotation_dtype) * self._root)).to(self.dtype)
        return self._linear(weight, torch.cat(biases) if biases else None)


def fits(model: Any) -> bool:
    """Whether ``model``, a ``transformers`` causal LM, is made of exactly what ``FusedTarget`` computes."""
    uniform = len({(parameter.device, parameter.dtype) for parameter in model.parameters()}) == 1
    return is_plain(model) and uniform and model.dtype.is_floating_point and agrees(model, FusedTarget)
