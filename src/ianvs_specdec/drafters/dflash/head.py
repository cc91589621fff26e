"""A DFlash head fitted to a target: blocks of several requests in one forward.

The hidden states of the target are injected as keys and values of every layer, so that a sequence of the head is a
cache of these and of nothing that was drafted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.drafters.dflash.layout import (
    FILES,
    WHAT,
    HeadConfig,
    check_fit,
    check_tensors,
    head_config,
    renamed,
)
from ianvs_specdec.drafters.eagle.steps import Pairs, features_of
from ianvs_specdec.drafters.tensors import find, read_tensors
from ianvs_specdec.engine.contracts import Target
from ianvs_specdec.models.validation import ModelSizes
from ianvs_specdec.targets.fused_sequence import capacity_for
from ianvs_specdec.targets.linear import Linear
from ianvs_specdec.targets.native.product import Product
from ianvs_specdec.targets.native.target import NativeTarget

FIRST_POSITIONS = 512
ROPE = ("rope_theta", "rope_scaling", "rope_parameters", "max_position_embeddings", "head_dim")

Multiply = Callable[[Tensor], Tensor]


@dataclass
class _Layer:
    """The products of one layer and the weights of its norms. ``scales [heads, 1, width]`` are those of queries, with
    the scale of attention, and of keys. ``window`` and ``causal``: see ``HeadConfig.seen``. Weights of keys and values
    are held a second time, in the one product for all layers that injects the target's states."""

    queries_keys_values: Multiply
    output: Multiply
    gate_up: Multiply
    down: Multiply
    norms: dict[str, Tensor]
    scales: Tensor
    window: int | None
    causal: bool


class HeadSequence:
    """Keys and values ``[layers, 2, key heads, capacity, width]`` of ``length`` positions of the target; room for a
    block is behind them."""

    def __init__(self, cache: Tensor) -> None:
        self.cache, self.length = cache, 0

    def reserve(self, positions: int) -> None:
        *before, capacity, width = self.cache.shape
        if positions > capacity:
            cache = self.cache.new_empty(*before, capacity_for(positions), width)
            cache[..., : self.length, :] = self.cache[..., : self.length, :]
            self.cache = cache

    def close(self) -> None:
        self.cache = self.cache.new_empty(0)


class DFlashHead:
    """Outside of the products everything is computed in ``work``: float32, or float64 for a target in float64. On the
    native step a draft depends, to the bit, on its request alone: so do its products, and attention is by request.

    Raises ``UserError`` naming the file, and the key or tensor at fault."""

    @torch.inference_mode()
    def __init__(self, folder: Path, target: Target) -> None:
        path, self.config = find(folder, FILES, WHAT), head_config(folder)
        tensors = read_tensors(path, WHAT)
        check_tensors(path, self.config, {name: tuple(tensor.shape) for name, tensor in tensors.items()})
        vocabulary, hidden = target.embedding.shape
        check_fit(folder, self.config, ModelSizes(vocabulary, hidden, target.layers, target.window))
        tensors = {renamed(name): tensor for name, tensor in tensors.items()}
        self.features = tuple(layer + 1 for layer in self.config.target_layer_ids)
        self.device, self._target, self._dtype = target.device, target, target.dtype
        self.work = torch.float64 if target.dtype == torch.float64 else torch.float32
        self._cosine = self._sine = torch.empty(0)
        self._rotary = _rotary(folder, self.config)
        native = isinstance(target, NativeTarget)
        made = partial(Product, target.native.library) if isinstance(target, NativeTarget) else Linear

        def product(*names: str) -> Multiply:
            weight = torch.cat([tensors[f"{name}.weight"] for name in names]).to(self.device, self._dtype)
            multiply = made(weight)
            return multiply if native else partial(_in_type, multiply, self._dtype, self.work)

        def norms(prefix: str) -> dict[str, Tensor]:
            named = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
            return {name: tensor.to(self.device, self.work) for name, tensor in named.items() if "norm" in name}

        self._join, self._norms = product("fc"), norms("")
        layers = [f"layers.{index}." for index in range(self.config.num_hidden_layers)]
        self._inject = product(*(f"{layer}self_attn.{name}_proj" for layer in layers for name in "kv"))
        self._layers = [
            _Layer(
                product(*(f"{layer}self_attn.{name}_proj" for name in "qkv")),
                product(f"{layer}self_attn.o_proj"),
                product(f"{layer}mlp.gate_proj", f"{layer}mlp.up_proj"),
                product(f"{layer}mlp.down_proj"),
                norms(layer),
                self._scales(norms(layer)),
                *self.config.seen(index),
            )
            for index, layer in enumerate(layers)
        ]

    def _scales(self, norms: dict[str, Tensor]) -> Tensor:
        queries = norms["self_attn.q_norm.weight"].expand(self.config.num_attention_heads, 1, -1)
        keys = norms["self_attn.k_norm.weight"].expand(self.config.num_key_value_heads, 1, -1)
        return torch.cat([queries * self.config.head_dim**-0.5, keys])

    def open(self) -> HeadSequence:
        config = self.config
        shape = (config.num_hidden_layers, 2, config.num_key_value_heads, 0, config.head_dim)
        return HeadSequence(torch.empty(shape, dtype=self.work, device=self.device))

    def memory(self, positions: int) -> int:
        """Bytes of the keys and values of a sequence with so many positions, at most."""
        config = self.config
        numbers = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
        return numbers * capacity_for(positions + config.block_size) * self.work.itemsize

    @torch.inference_mode()
    def keep(self, sequence: HeadSequence, pairs: Pairs) -> None:
        """Add the target's hidden states of the next positions, if there are any."""
        if not pairs.tokens:
            return
        states = torch.cat(features_of([pairs]), dim=-1)
        joined = self._normed(self._join(states), self._norms["hidden_norm.weight"])
        start, end = sequence.length, sequence.length + len(joined)
        sequence.reserve(end + self.config.block_size)
        shape = (self.config.num_hidden_layers, 2, self.config.num_key_value_heads, self.config.head_dim)
        projected = self._inject(joined).unflatten(-1, shape).permute(1, 2, 3, 0, 4)
        turns = self._turns(torch.arange(start, end, device=self.device))
        for layer, cache, (keys, values) in zip(self._layers, sequence.cache, projected, strict=True):
            cache[0, :, start:end] = _turned(self._normed(keys, layer.norms["self_attn.k_norm.weight"]), turns)
            cache[1, :, start:end] = values
        sequence.length = end

    @torch.inference_mode()
    def draft(self, asked: Sequence[tuple[HeadSequence, int, int]]) -> list[Tensor]:
        """For each of several different sequences, its last token, and a number of drafts: their logits ``[drafts,
        vocabulary]``."""
        block, mask = self.config.block_size, self.config.mask_token_id
        ids = [token for _, root, _ in asked for token in (root, *[mask] * (block - 1))]
        x = self._target.embedding[torch.tensor(ids, device=self.device)].to(self.work)
        sequences = [sequence for sequence, _, _ in asked]
        starts = torch.tensor([sequence.length for sequence in sequences], device=self.device)
        positions = (starts[:, None] + torch.arange(block, device=self.device)).flatten()
        turns = self._turns(positions)
        for index, layer in enumerate(self._layers):
            x = self._through(x, index, layer, sequences, turns)
        states = x.unflatten(0, (-1, block))
        drafted = torch.cat([own[1 : drafts + 1] for own, (_, _, drafts) in zip(states, asked, strict=True)])
        logits = self._target.unembed(self._normed(drafted, self._norms["norm.weight"]).to(self._dtype))
        if isinstance(self._target, NativeTarget):
            self._target.finish(logits)
        return list(logits.split([drafts for _, _, drafts in asked]))

    def _through(
        self, x: Tensor, index: int, layer: _Layer, sequences: Sequence[HeadSequence], turns: tuple[Tensor, Tensor]
    ) -> Tensor:
        """The blocks ``[sequences * block, hidden]`` after a layer."""
        block, width, norms = self.config.block_size, self.config.head_dim, layer.norms
        heads = (self.config.num_attention_heads, self.config.num_key_value_heads)
        entry = layer.queries_keys_values(self._normed(x, norms["input_layernorm.weight"]))
        turning, values = entry.unflatten(-1, (-1, width)).transpose(0, 1).split((sum(heads), heads[1]))
        scaled = functional.rms_norm(turning, (width,), eps=self.config.rms_norm_eps) * layer.scales
        queries, keys = _turned(scaled, turns).split(heads)
        attended = []
        for number, sequence in enumerate(sequences):
            rows = slice(number * block, (number + 1) * block)
            start, end = sequence.length, sequence.length + block
            cache = sequence.cache[index]
            cache[0, :, start:end], cache[1, :, start:end] = keys[:, rows], values[:, rows]
            # The queries that share a key head are rows of one product.
            own = queries[:, rows].reshape(heads[1], -1, width)
            scores = torch.bmm(own, cache[0, :, :end].mT)
            if (hidden := _hidden(layer, start, end, self.device)) is not None:
                scores = scores.unflatten(1, (-1, block)).masked_fill(hidden, -torch.inf).flatten(1, 2)
            out = torch.bmm(scores.softmax(dim=-1), cache[1, :, :end])
            attended.append(out.view(heads[0], block, width).transpose(0, 1).flatten(1))
        x = x + layer.output(torch.cat(attended))
        gate, up = layer.gate_up(self._normed(x, norms["post_attention_layernorm.weight"])).chunk(2, dim=-1)
        return x + layer.down(functional.silu(gate) * up)

    def _turns(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines ``[positions, width]`` of the rotary embedding, the first half of the sines negative."""
        reach = int(positions.max()) + 1
        if reach > len(self._cosine):
            cosine, sine = self._rotary(torch.empty(0), torch.arange(max(FIRST_POSITIONS, 2 * reach))[None])
            sine[..., : sine.shape[-1] // 2] *= -1
            self._cosine, self._sine = (part[0].to(self.device, self.work) for part in (cosine, sine))
        return self._cosine[positions], self._sine[positions]

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(x, weight.shape, weight, self.config.rms_norm_eps)


def _in_type(multiply: Multiply, dtype: torch.dtype, work: torch.dtype, x: Tensor) -> Tensor:
    return multiply(x.to(dtype)).to(work)


def _rotary(folder: Path, config: HeadConfig) -> torch.nn.Module:
    from transformers import Qwen3Config
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

    own = {name: value for name, value in config.explicit().items() if name in ROPE}
    try:
        return Qwen3RotaryEmbedding(Qwen3Config(**own))
    except Exception as error:  # transformers raises many kinds
        reason = f"the parameters of the rotary embedding are incomplete or wrong: {error!r:.120}"
        raise UserError(f"{WHAT} {folder / 'config.json'}: {reason}", key="head") from error


def _hidden(layer: _Layer, start: int, end: int, device: torch.device) -> Tensor | None:
    """Which of the positions before ``end`` those from ``start`` do not see, None where they see all."""
    if layer.window is None and not layer.causal:
        return None
    distance = torch.arange(start, end, device=device)[:, None] - torch.arange(end, device=device)
    unseen = distance < 0 if layer.causal else torch.zeros_like(distance, dtype=torch.bool)
    return unseen if layer.window is None else unseen | (distance.abs() >= layer.window)


def _turned(x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    """``x [heads, rows, width]`` turned to the positions of its rows."""
    return torch.addcmul(x * turns[0], x.roll(x.shape[-1] // 2, dims=-1), turns[1])
