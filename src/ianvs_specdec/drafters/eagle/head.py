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

from ianvs_specdec.drafters.eagle import checkpoint as eagle_checkpoint
from ianvs_specdec.drafters.eagle.checkpoint import EagleCheckpoint, FoldedWeights, rotations
from ianvs_specdec.drafters.eagle.sequence import HeadSequence, Rows
from ianvs_specdec.drafters.eagle.steps import Asked, Level, Pairs, features_of
from ianvs_specdec.engine.contracts import Target
from ianvs_specdec.targets.fused_sequence import room
from ianvs_specdec.targets.linear import Linear

_CACHED_WEIGHT = 1 << 20
_FIRST_POSITIONS = 512


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
    """A head fitted to a target, which computes steps of many sequences at once (see ``steps.Head``).

    Outside of the products everything is computed in float32 (float64 for a target in float64): ``work``.
    """

    @torch.inference_mode()
    def __init__(self, checkpoint: EagleCheckpoint, target: Target) -> None:
        self.features = checkpoint.fitted(target)
        self.config = config = checkpoint.config
        self.device = target.device
        self.work = torch.float64 if target.dtype == torch.float64 else torch.float32
        self.eagle3 = checkpoint.eagle3
        self._dtype = target.dtype
        self._root = math.sqrt(config.hidden)
        self._epsilon_length = torch.tensor(math.sqrt(config.epsilon) * self._root, dtype=self.work, device=self.device)
        weights = FoldedWeights(checkpoint, self.device, self._root)
        from_hidden = self._fold_inputs(weights, target)
        self._fold_outputs(weights, target, from_hidden)
        self._output = self._product(weights["self_attn.o_proj"])
        bias = weights.get(f"{checkpoint.layer}self_attn.o_proj.bias")
        self._output_bias = None if bias is None else bias.to(self.work)
        self._down = self._product(weights["mlp.down_proj"])
        self._gate_up = self._product(weights.normed("post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj"))
        self._angles = torch.empty(0)

    def open(self) -> HeadSequence:
        """A new, empty sequence."""
        return HeadSequence(self.config, self.work, self.device)

    def memory(self, positions: int) -> int:
        return 2 * self.config.keys * self.config.width * room(positions) * self.work.itemsize

    def keep(self, sequence: HeadSequence, pairs: Pairs) -> None:
        """Add ``pairs`` to ``sequence`` without asking for logits."""
        self._compute([(sequence, pairs)])

    def step(self, parts: Sequence[Asked]) -> list[Tensor]:
        """The logits ``[rows, draft vocabulary]`` that the parts ask for, each of another sequence."""
        for sequence, asked in parts:
            if isinstance(asked, Pairs) and not asked.tokens:
                sequence.go_back()
        self._compute(parts)
        sequences = [sequence for sequence, _ in parts]
        carry, logits = self._look_at(_together([sequence.hidden for sequence in sequences]))
        sizes = [len(sequence.hidden) for sequence in sequences]
        for sequence, carried in zip(sequences, carry.split(sizes), strict=True):
            sequence.carry = carried
        return list(logits.split(sizes))

    def _compute(self, parts: Sequence[Asked]) -> None:
        """Let rows enter the layer, and leave with each sequence the hidden states of those that are wanted."""
        rows = self._rows(parts)
        if not rows:
            return
        entered, queries, keys_values = self._entered(rows)
        sizes = [len(part.tokens) for part in rows]
        queries_of, written_of = queries.split(sizes), keys_values.split(sizes)
        attended = []
        for part, own, written in zip(rows, queries_of, written_of, strict=True):
            part.sequence.write(written, stay=part.stay)
            attended.append(part.sequence.attend(own[-part.wanted :], part.mask))
        if self.eagle3:
            residual = _together([part.hidden.expand(part.wanted, -1) for part in rows])
        else:
            residuals = zip(rows, entered.split(sizes), strict=True)
            residual = _together([own[-part.wanted :] for part, own in residuals])
        hidden = self._finish(residual, _together(attended))
        for part, own in zip(rows, hidden.split([part.wanted for part in rows]), strict=True):
            part.sequence.computed(own, stay=part.stay)

    def _rows(self, parts: Sequence[Asked]) -> list[Rows]:
        rows = [Rows.of_level(sequence, level) for sequence, level in parts if isinstance(level, Level)]
        read = [(sequence, pairs) for sequence, pairs in parts if isinstance(pairs, Pairs) and pairs.tokens]
        if read:
            hidden = self._absorb(features_of([pairs for _, pairs in read]))
            sizes = [len(pairs.tokens) for _, pairs in read]
            states = zip(hidden.split(sizes), self._carry(hidden).split(sizes), strict=True)
            rows += [Rows.of_pairs(*part, *own) for part, own in zip(read, states, strict=True)]
        return rows

    def _entered(self, rows: Sequence[Rows]) -> tuple[Tensor, Tensor, Tensor]:
        """Residual inputs, queries, and keys and values of all rows, turned."""
        config, tokens = self.config, _together([part.tokens for part in rows])
        entry = _together([part.carry for part in rows]) + self._entry(tokens)
        residual, projected = entry.split([self.entry_width - config.projected, config.projected], dim=-1)
        queries, turned = config.queries * config.width, (config.queries + config.keys) * config.width
        pairs = torch.view_as_complex(projected[:, :turned].view(len(tokens), -1, config.width // 2, 2))
        self._reserve(max(part.positions.stop for part in rows))
        angles = [part.angles(self._angles, alone=len(rows) == 1) for part in rows]
        pairs.mul_(_together(angles))
        return residual, projected[:, :queries].view(len(tokens), config.keys, -1, config.width), projected[:, queries:]

    def _absorb(self, features: Sequence[Tensor]) -> Tensor:
        """The hidden states ``[rows, hidden]`` that the target's own ``features``, each ``[rows, target hidden]``,
        stand for."""
        if self._join is None:
            return features[0].to(self.work)
        return self._join(torch.cat(list(features), dim=-1).to(self.work)).to(self.work)

    def _carry(self, hidden: Tensor) -> Tensor:
        """What hidden states ``[rows, hidden]`` bring into the layer for the token after them; see ``_entry``."""
        return self._enter(self._seen(hidden))

    def _look_at(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """``_carry`` and the logits ``[rows, draft vocabulary]`` of the token after each of the hidden states."""
        seen = self._seen(hidden)
        if self._target is not None:
            return self._enter(seen), self._target.unembed(seen.to(self._dtype))
        both = self._look(seen)
        return both[:, : self.entry_width], both[:, self.entry_width :]

    def _entry(self, tokens: Tensor) -> Tensor:
        """What token ids ``[rows]`` bring into the layer. Together with the carried part this is ``[rows,
        entry_width]``: the layer's residual input (not in EAGLE-3, where the hidden state is it), queries, keys and
        values, in pairs and scaled."""
        if self._table is not None:
            return self._table.index_select(0, tokens)
        return self._enter_token(self._token_input(self._embedding[tokens].to(self.work))) + self._entry_bias

    def _finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """Hidden states ``[rows, hidden]`` after the layer, from its residual input and what attention returned."""
        x = self._output.added(attended, x if self._output_bias is None else x + self._output_bias)
        gate_up = self._gate_up(self._normed(x))
        half = self.config.intermediate
        return self._down.added(functional.silu(gate_up[:, :half]).mul_(gate_up[:, half:]), x)

    def _reserve(self, positions: int) -> None:
        """The rotations of so many positions at least, as complex factors ``[positions, 1, width / 2]``."""
        if positions > len(self._angles):
            factors = torch.complex(*rotations(self.config, 0, max(_FIRST_POSITIONS, 2 * positions), self.work))
            self._angles = factors[:, None].to(self.device)

    def _fold_inputs(self, weights: FoldedWeights, target: Target) -> Tensor:
        from_token, from_hidden, bias = weights.entries()
        self.entry_width = len(from_token)
        self._enter = self._product(from_hidden)
        self._join = self._product(weights.tensor("fc.weight")) if self.eagle3 else None
        embedding = weights.get("embed_tokens.weight")
        embedding = target.embedding.detach() if embedding is None else embedding
        self._table: Tensor | None = None
        if len(embedding) * self.entry_width <= eagle_checkpoint.FOLDED_TABLE:
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
        elif self.vocabulary * hidden <= eagle_checkpoint.FOLDED_TABLE and not bool(bias.any()):
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


def _together(parts: Sequence[Tensor]) -> Tensor:
    """All rows, without a copy where there is one part only."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
