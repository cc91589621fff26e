"""An EAGLE head in the native library: drafts do not depend, to the bit, on other requests.

Weights are the checkpoint's in the target's type. The layer's input per token is precomputed if the vocabulary is not
too large. A whole draft by unmodified probabilities is one call of the library.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ianvs_specdec.drafters.eagle.checkpoint import EagleCheckpoint, rotations
from ianvs_specdec.drafters.eagle.steps import Level, StepPart
from ianvs_specdec.drafters.hidden_states import Pairs
from ianvs_specdec.engine import TokenTree
from ianvs_specdec.targets.native.heads import Head, HeadState, Limits
from ianvs_specdec.targets.native.model import POSITIONS_AT_ONCE, Features, Layer, Model, Rotations
from ianvs_specdec.targets.native.product import Product
from ianvs_specdec.targets.native.target import NativeTarget

FOLDED_TABLE = 1 << 25
"""Maximum numbers in the table of layer inputs per token."""

READ_OUT = 64
"""Rows of the target's output matrix that are extracted per product."""


@dataclass
class NativeDraft:
    """A draft by unmodified probabilities: a dynamic tree if ``tree``, else a chain."""

    sequence: HeadState
    pairs: Pairs
    root: int
    limits: Limits
    tree: bool


class NativeHead:
    work = torch.float32

    @torch.inference_mode()
    def __init__(self, checkpoint: EagleCheckpoint, target: NativeTarget) -> None:
        self.features = checkpoint.fitted(target)
        self.config = checkpoint.config
        self.device = target.device
        self.vocabulary = target.unembed.out
        self.vocabulary_map: Tensor | None = None
        offsets = checkpoint.tensors.get("d2t")
        if offsets is not None:
            self.vocabulary_map = torch.arange(len(offsets)) + offsets
        self._checkpoint, self._dtype, self._library = checkpoint, target.dtype, target.native.library
        self._head = self._eagle3(target) if checkpoint.eagle3 else self._eagle1(target)
        del self._checkpoint

    def open(self) -> HeadState:
        return self._head.open()

    def memory(self, positions: int) -> int:
        return self._head.model.memory(positions)

    def keep(self, sequence: HeadState, pairs: Pairs) -> None:
        self._head.read([(sequence, pairs)], logits=False)

    def step(self, parts: Sequence[StepPart]) -> list[Tensor]:
        logits: dict[int, Tensor] = {}
        read = {number: (it, part) for number, (it, part) in enumerate(parts) if isinstance(part, Pairs)}
        if read:
            logits |= zip(read, self._head.read(list(read.values())).split(1), strict=True)
        grown = {number: (it, part) for number, (it, part) in enumerate(parts) if isinstance(part, Level)}
        if grown:
            levels = [(sequence, level.tokens, level.above) for sequence, level in grown.values()]
            rows = self._head.levels(levels, max(level.depth for _, level in grown.values()))
            logits |= zip(grown, rows.split([len(tokens) for _, tokens, _ in levels]), strict=True)
        return [logits[number] for number in range(len(parts))]

    def draft(self, drafts: Sequence[NativeDraft]) -> list[TokenTree]:
        """Drafts of several sequences, those of one shape in one call."""
        made: dict[int, TokenTree] = {}
        for tree in (False, True):
            own = {number: draft for number, draft in enumerate(drafts) if draft.tree is tree}
            if not own:
                continue
            parts = [(draft.sequence, draft.pairs, draft.limits) for draft in own.values()]
            grown = self._head.trees(parts) if tree else self._head.chains(parts)
            for (number, draft), (tokens, parents) in zip(own.items(), grown, strict=True):
                made[number] = TokenTree([draft.root, *tokens], [-1, *parents])
        return [made[number] for number in range(len(drafts))]

    def _eagle1(self, target: NativeTarget) -> Head:
        hidden = self.config.hidden
        joint, bias = self._tensor("fc.weight"), self._checkpoint.tensors.get("fc.bias")
        layer = self._layer(self._projections(), self._bias())
        tokens, product = self._tokens(self._tensor("embed_tokens.weight"), joint[:, :hidden], bias)
        unembed = target.unembed
        if self.vocabulary_map is not None:
            unembed = self._rows(unembed, self.vocabulary_map)
        return Head(
            self._model([layer], unembed=unembed, features=target.logits_features),
            Rotations(self._rotations),
            features=1,
            feature=target.embedding.shape[1],
            tokens=tokens,
            token_product=product,
            entry=self._product(joint[:, hidden:]),
            target_ids=self.vocabulary_map,
        )

    def _eagle3(self, target: NativeTarget) -> Head:
        hidden, projections = self.config.hidden, self._projections()
        flags, hidden_norm = self.config.flags, self._own("hidden_norm")
        first = "norm_before_residual" in flags
        layer = self._layer(projections[:, hidden:], None, input_norm=None if first else hidden_norm)
        embedding = self._checkpoint.tensors.get("embed_tokens.weight", target.embedding.detach())
        norm = self._own("input_layernorm").float()
        tokens, product = self._tokens(embedding, projections[:, :hidden], self._bias(), norm)
        return Head(
            self._model(
                [layer], unembed=self._product(self._tensor("lm_head.weight")), norm=self._tensor("norm.weight")
            ),
            Rotations(self._rotations),
            features=len(self.features),
            feature=target.embedding.shape[1],
            tokens=tokens,
            token_norm=None if product is None else norm,
            token_product=product,
            join=self._product(self._tensor("fc.weight"), self._checkpoint.tensors.get("fc.bias")),
            feature_norm=self._checkpoint.feature_norm,
            before_norm=hidden_norm if first else None,
            normed="norm_output" in flags,
            target_ids=self.vocabulary_map,
        )

    def _layer(self, projections: Tensor, bias: Tensor | None, input_norm: Tensor | None = None) -> Layer:
        name = self._checkpoint.layer
        gate_up = torch.cat([self._own("mlp.gate_proj"), self._own("mlp.up_proj")])
        tensors, joined = self._checkpoint.tensors, self._checkpoint.joined
        return Layer(
            self._product(projections, bias),
            self._product(self._own("self_attn.o_proj"), tensors.get(f"{name}self_attn.o_proj.bias")),
            self._product(gate_up, joined(["mlp.gate_proj", "mlp.up_proj"], "bias")),
            self._product(self._own("mlp.down_proj"), tensors.get(f"{name}mlp.down_proj.bias")),
            self._own("post_attention_layernorm"),
            input_norm,
            tensors.get(f"{name}self_attn.q_norm.weight"),
            tensors.get(f"{name}self_attn.k_norm.weight"),
            window=self.config.window,
        )

    def _rows(self, unembed: Product, ids: Tensor) -> Product:
        """The rows of the target's output matrix for these token ids. Its weights may be packed, so they are computed
        from unit vectors."""
        bias = unembed(torch.zeros(1, unembed.inputs))[0, ids]
        ones = torch.eye(unembed.inputs).split(READ_OUT)
        weight = torch.cat([unembed(rows)[:, ids] - bias for rows in ones]).T
        return self._product(weight, bias)

    def _model(
        self,
        layers: Sequence[Layer],
        unembed: Product,
        norm: Tensor | None = None,
        features: Features | None = None,
    ) -> Model:
        config = self.config
        return Model(
            self._library,
            layers,
            queries=config.queries,
            keys=config.keys,
            width=config.width,
            epsilon=config.epsilon,
            final_norm=norm,
            unembed=unembed,
            features=features,
        )

    def _tokens(
        self, embedding: Tensor, weight: Tensor, bias: Tensor | None, norm: Tensor | None = None
    ) -> tuple[Tensor, Product | None]:
        """The input of the layer per token, ``weight`` times its embedding after ``norm`` plus ``bias``: as a table, or
        if that is too large as the embedding and the product."""
        if len(embedding) * len(weight) > FOLDED_TABLE:
            return embedding.to(self._dtype).contiguous(), self._product(weight, bias)
        inputs = embedding.double()
        if norm is not None:
            inputs = torch.nn.functional.rms_norm(inputs, norm.shape, norm.double(), self.config.epsilon)
        table = inputs @ weight.double().T
        return (table if bias is None else table + bias.double()).float(), None

    def _projections(self) -> Tensor:
        return torch.cat([self._own(f"self_attn.{name}_proj") for name in "qkv"])

    def _bias(self) -> Tensor | None:
        return self._checkpoint.joined([f"self_attn.{name}_proj" for name in "qkv"], "bias")

    def _own(self, module: str) -> Tensor:
        return self._tensor(f"{self._checkpoint.layer}{module}.weight")

    def _tensor(self, name: str) -> Tensor:
        return self._checkpoint.tensors[name]

    def _product(self, weight: Tensor, bias: Tensor | None = None) -> Product:
        return Product(self._library, weight.to(self._dtype), bias)

    def _rotations(self, start: int) -> tuple[Tensor, Tensor]:
        return rotations(self.config, start, start + POSITIONS_AT_ONCE, self.work)
