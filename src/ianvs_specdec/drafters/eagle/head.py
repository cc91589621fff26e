"""An EAGLE head in torch, for targets that the native library does not compute.

A head is one Llama layer over pairs of a token and a feature. Since there is one layer only, pairs whose output nobody
asks for get their keys and values and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from ianvs_specdec.drafters.eagle.checkpoint import EagleCheckpoint, rotations
from ianvs_specdec.drafters.eagle.layout import HeadConfig
from ianvs_specdec.drafters.eagle.steps import Asked, Level, Pairs, features_of
from ianvs_specdec.engine.contracts import Target
from ianvs_specdec.targets.fused_sequence import capacity_for
from ianvs_specdec.targets.linear import Linear

_FIRST_POSITIONS = 512


class HeadSequence:
    """Keys and values of the pairs that stay, then those of the tree being drafted.

    Pair i is the token at index i + 1 and the target's feature at index i; it sits at position i. ``hidden`` are the
    states of the rows that were computed last: of the last pair, or of a level.
    """

    hidden: Tensor
    _last: Tensor

    def __init__(self, config: HeadConfig, work: torch.dtype, device: torch.device) -> None:
        self.length = self._end = 0
        self._window, self._positions = config.window, torch.empty(0, dtype=torch.long, device=device)
        self._cache = torch.empty(2, config.keys, 0, config.width, dtype=work, device=device)

    def close(self) -> None:
        self._cache = self.hidden = self._last = self._cache.new_empty(0)

    def computed(self, hidden: Tensor, *, stay: bool) -> None:
        """Take the states of the rows that were written, of those that are wanted."""
        self.hidden = hidden
        if stay:
            self._last = hidden

    def go_back(self) -> None:
        """Drop what was drafted since the last pair."""
        self.hidden, self._end = self._last, self.length

    def write(self, keys: Tensor, values: Tensor, positions: Sequence[int], *, stay: bool) -> None:
        """Add rows ``[rows, key heads, width]``, of pairs that ``stay`` in the place of what was drafted."""
        start = self.length if stay else self._end
        self._end = end = start + len(keys)
        if stay:
            self.length = end
        if end > self._cache.shape[2]:
            cache = self._cache.new_empty(*self._cache.shape[:2], capacity_for(end), self._cache.shape[3])
            cache[:, :, :start] = self._cache[:, :, :start]
            self._cache = cache
        self._cache[0, :, start:end] = keys.transpose(0, 1)
        self._cache[1, :, start:end] = values.transpose(0, 1)
        if self._window is not None:
            self._positions = torch.cat([self._positions[:start], self._positions.new_tensor(positions)])

    def attend(self, queries: Tensor, mask: Tensor | None) -> Tensor:
        """Attention of ``queries [rows, heads, width]`` to all that was written: ``[rows, heads * width]``.

        ``mask [rows, drafted rows]`` is added to the scores for what was drafted.
        """
        keys, values = self._cache[:, None, :, : self._end]
        if mask is not None:
            mask = functional.pad(mask.to(queries.dtype), (self.length, 0))
        if self._window is not None and self._end > self._window:
            mask = queries.new_zeros(len(queries), self._end) if mask is None else mask
            # All rows of a level have the last one's position.
            mask = mask.masked_fill(self._positions <= self._positions[-1] - self._window, -torch.inf)
        attended = functional.scaled_dot_product_attention(
            queries.transpose(0, 1)[None], keys, values, attn_mask=mask, enable_gqa=True
        )
        return attended[0].transpose(0, 1).flatten(1)


@dataclass
class _Rows:
    """One sequence's rows in a step: ``tokens`` at ``positions``, each with the ``hidden`` state before it. The last
    ``wanted`` of them are computed to the end."""

    sequence: HeadSequence
    tokens: Tensor
    hidden: Tensor
    positions: Sequence[int]
    wanted: int
    stay: bool
    mask: Tensor | None = None


class EagleHead:
    """Implements ``steps.Head`` for any target. Outside of the products everything is computed in ``work``: float32,
    or float64 for a target in float64."""

    @torch.inference_mode()
    def __init__(self, checkpoint: EagleCheckpoint, target: Target) -> None:
        self.features = checkpoint.fitted(target)
        self.config, self.device = checkpoint.config, target.device
        self.work = torch.float64 if target.dtype == torch.float64 else torch.float32
        self.vocabulary = len(target.embedding)
        self.vocabulary_map: Tensor | None = None
        self._eagle3, self._dtype, flags = checkpoint.eagle3, target.dtype, self.config.flags
        self._normed_residual, self._normed_output = "norm_before_residual" in flags, "norm_output" in flags
        self._feature_norm = checkpoint.feature_norm
        if self._feature_norm is not None:
            weight, width = self._feature_norm
            self._feature_norm = weight.to(self.device, self.work), width
        tensors = {name: tensor.to(self.device) for name, tensor in checkpoint.tensors.items()}
        if (offsets := tensors.get("d2t")) is not None:
            self.vocabulary_map = torch.arange(len(offsets), device=self.device) + offsets
        self._embedding = tensors.get("embed_tokens.weight", target.embedding.detach())
        self._norms = {name: tensor.to(self.work) for name, tensor in tensors.items() if "norm" in name}

        def product(*modules: str) -> Linear:
            weight = torch.cat([tensors[f"{module}.weight"] for module in modules])
            biases = [tensors[f"{module}.bias"] for module in modules if f"{module}.bias" in tensors]
            return Linear(weight.to(self._dtype), torch.cat(biases).to(self._dtype) if biases else None)

        self._layer = layer = checkpoint.layer
        self._join = product("fc")
        self._project = product(*(f"{layer}self_attn.{name}_proj" for name in "qkv"))
        self._output = product(f"{layer}self_attn.o_proj")
        self._gate_up = product(f"{layer}mlp.gate_proj", f"{layer}mlp.up_proj")
        self._down = product(f"{layer}mlp.down_proj")
        self._unembed = product("lm_head") if self._eagle3 else target.unembed
        self._cosine = torch.empty(0)

    def open(self) -> HeadSequence:
        return HeadSequence(self.config, self.work, self.device)

    def memory(self, positions: int) -> int:
        return 2 * self.config.keys * self.config.width * capacity_for(positions) * self.work.itemsize

    def keep(self, sequence: HeadSequence, pairs: Pairs) -> None:
        self._compute([(sequence, pairs)])

    def step(self, parts: Sequence[Asked]) -> list[Tensor]:
        """The logits ``[rows, draft vocabulary]`` that the parts ask for, each of another sequence."""
        for sequence, asked in parts:
            if isinstance(asked, Pairs) and not asked.tokens:
                sequence.go_back()
        self._compute([(sequence, asked) for sequence, asked in parts if isinstance(asked, Level) or asked.tokens])
        states = [sequence.hidden for sequence, _ in parts]
        hidden = torch.cat(states)
        if self._eagle3 and not self._normed_output:
            hidden = self._normed(hidden, "norm")
        logits = self._unembed(hidden.to(self._dtype))
        if not self._eagle3 and self.vocabulary_map is not None:
            logits = logits[:, self.vocabulary_map]
        return list(logits.split([len(own) for own in states]))

    def _compute(self, parts: Sequence[Asked]) -> None:
        """Let rows enter the layer, and leave with each sequence the hidden states of those that are wanted."""
        if not parts:
            return
        rows = [self._rows(sequence, asked) for sequence, asked in parts]
        sizes = [len(part.tokens) for part in rows]
        entry, residual = self._enter(torch.cat([part.tokens for part in rows]), torch.cat([p.hidden for p in rows]))
        queries, keys, values = self._projected(entry, [position for part in rows for position in part.positions])
        own = zip(rows, *(each.split(sizes) for each in (queries, keys, values)), strict=True)
        attended = []
        for part, asking, key, value in own:
            part.sequence.write(key, value, part.positions, stay=part.stay)
            attended.append(part.sequence.attend(asking[-part.wanted :], part.mask))
        wanted = [states[-part.wanted :] for part, states in zip(rows, residual.split(sizes), strict=True)]
        hidden = self._finish(torch.cat(wanted), torch.cat(attended))
        for part, states in zip(rows, hidden.split([part.wanted for part in rows]), strict=True):
            part.sequence.computed(states, stay=part.stay)

    def _rows(self, sequence: HeadSequence, asked: Pairs | Level) -> _Rows:
        if isinstance(asked, Pairs):
            features = torch.cat(features_of([asked]), dim=-1)
            if self._feature_norm is not None:
                weight, width = self._feature_norm
                parts = features.to(self.work).unflatten(-1, (-1, width))
                features = functional.rms_norm(parts, (width,), eps=self.config.epsilon).flatten(-2) * weight
            hidden = self._join(features.to(self._dtype)) if self._eagle3 else features
            tokens = torch.tensor(asked.tokens, device=self.device)
            positions = range(sequence.length, sequence.length + len(tokens))
            return _Rows(sequence, tokens, hidden.to(self.work), positions, 1, stay=True)
        hidden = sequence.hidden if asked.above is None else sequence.hidden.index_select(0, asked.above)
        at = [sequence.length + asked.depth - 1] * len(hidden)
        return _Rows(sequence, asked.tokens, hidden, at, len(hidden), stay=False, mask=asked.mask)

    def _enter(self, tokens: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """The input of attention and the residual, of token ids ``[rows]`` and the states before them."""
        embedded = self._embedding[tokens].to(self.work)
        if self._eagle3:
            of_token = self._normed(embedded, f"{self._layer}input_layernorm")
            normed = self._normed(hidden, f"{self._layer}hidden_norm")
            return torch.cat([of_token, normed], -1), normed if self._normed_residual else hidden
        joined = self._join(torch.cat([embedded, hidden], dim=-1).to(self._dtype)).to(self.work)
        return joined, joined

    def _projected(self, entry: Tensor, positions: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each ``[rows, heads, width]``, the first two turned to their ``positions``."""
        config = self.config
        projected = self._project(entry.to(self._dtype)).to(self.work).unflatten(-1, (-1, config.width))
        turning, values = projected.split([config.queries + config.keys, config.keys], dim=1)
        if config.head_norms:
            parts = zip(turning.split([config.queries, config.keys], dim=1), "qk", strict=True)
            turning = torch.cat([self._normed(part, f"{self._layer}self_attn.{name}_norm") for part, name in parts], 1)
        if (reach := max(positions) + 1) > len(self._cosine):
            turns = rotations(config, 0, max(_FIRST_POSITIONS, 2 * reach), self.work)
            self._cosine, self._sine = (each.to(self.device) for each in turns)
        cosine, sine = self._cosine[positions, None], self._sine[positions, None]
        first, second = turning.chunk(2, dim=-1)
        turned = torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)
        return *turned.split([config.queries, config.keys], dim=1), values

    def _finish(self, residual: Tensor, attended: Tensor) -> Tensor:
        """Hidden states ``[rows, hidden]`` after the layer, from its residual input and what attention returned."""
        x = residual + self._output(attended.to(self._dtype))
        normed = self._normed(x, f"{self._layer}post_attention_layernorm")
        gate, up = self._gate_up(normed.to(self._dtype)).chunk(2, dim=-1)
        x = x + self._down(functional.silu(gate) * up)
        return self._normed(x, "norm") if self._normed_output else x

    def _normed(self, x: Tensor, norm: str) -> Tensor:
        return functional.rms_norm(x, x.shape[-1:], self._norms[f"{norm}.weight"], self.config.epsilon)
