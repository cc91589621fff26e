"""A model of transformers in the native step's form: its layers packed, its rotations in tables."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.models.families import Description, LayerKind, describe
from ianvs_specdec.targets.compatibility import has_plain_projections
from ianvs_specdec.targets.native.model import POSITIONS_AT_ONCE, Features, Layer
from ianvs_specdec.targets.native.product import Product


def description_of(model: Any) -> Description:
    """Raises UserError for a model of another family, or one whose configuration asks for something else."""
    config = model.config
    return describe(config.to_dict(), type(config)().to_dict())


class Packer:
    """Makes layers of ``model``'s. With ``consume`` they give up their own weights."""

    def __init__(self, library: ctypes.CDLL, description: Description, quantization: str | None, consume: bool) -> None:
        self._library, self._description = library, description
        self._quantization, self._consume = quantization, consume

    def layer(self, layer: Any, kind: LayerKind) -> Layer:
        """``layer`` is a decoder layer of transformers, ``kind`` what its configuration says of it."""
        attention, mlp, family = layer.self_attn, layer.mlp, self._description.family
        names = ("qkv_proj",) if family.fused else ("q_proj", "k_proj", "v_proj")
        norms = {name: self.norm(getattr(layer, module)) for name, module in family.norms.items()}
        if family.head_norms:
            norms |= {"query_norm": self.norm(attention.q_norm), "key_norm": self.norm(attention.k_norm)}
        rotations = self._description.rotations
        qkv = self._product(getattr(attention, name) for name in names)
        output = self._product([attention.o_proj])
        router, gate_up, down = self._mixture(mlp) if hasattr(mlp, "experts") else (None, *self._mlp(mlp))
        return Layer(
            qkv,
            output,
            gate_up,
            down,
            router=router,
            window=kind.window,
            rotation=None if kind.rotation is None else rotations.index(kind.rotation),
            **norms,
        )

    def norm(self, module: Any) -> Tensor:
        weight: Tensor = module.weight.detach().float()
        return weight + self._description.family.norm_offset

    def _mlp(self, mlp: Any) -> tuple[Product, Product]:
        names = ("gate_up_proj",) if self._description.family.fused else ("gate_proj", "up_proj")
        return self._product(getattr(mlp, name) for name in names), self._product([mlp.down_proj])

    def _mixture(self, mlp: Any) -> tuple[Product, list[Product], list[Product]]:
        experts = mlp.experts
        # Where a row goes would change with the rounding of few bits.
        router = Product(self._library, mlp.gate.weight)
        parts = [
            [Product(self._library, weight, None, self._quantization) for weight in stacked]
            for stacked in (experts.gate_up_proj, experts.down_proj)
        ]
        if self._consume:
            _give_up([experts.gate_up_proj, experts.down_proj])
        return router, parts[0], parts[1]

    def _product(self, modules: Iterable[torch.nn.Linear]) -> Product:
        modules = list(modules)
        weight = torch.cat([module.weight.detach() for module in modules])
        biases = [module.bias.detach() for module in modules if module.bias is not None]
        product = Product(self._library, weight, torch.cat(biases) if biases else None, self._quantization)
        if self._consume:
            _give_up([module.weight for module in modules])
        return product


def features_of(model: Any, description: Description, rotary: int) -> Features:
    """``rotary``: how many numbers of a head are rotated."""
    factors = dict(description.factors)
    embedding = model.get_input_embeddings()
    if hasattr(embedding, "embed_scale"):  # Gemma's has the type of the weights
        factors["embedding_scale"] = float(embedding.embed_scale.to(embedding.weight.dtype))
    return Features(
        rotary=rotary,
        gate=description.gate,
        whole_norms=description.family.head_norms == "whole",
        experts=description.experts,
        chosen=description.chosen,
        normalize_chosen=description.normalize_chosen,
        **factors,
    )


def rotations_of(model: Any, description: Description) -> Callable[[int], tuple[Tensor, Tensor]]:
    """What makes cosines and sines ``[kinds, positions, rotary / 2]`` of the model's own module, for ``Rotations``: of
    the kinds of layers, or where rotations change at a length, those before and those from it on."""
    like, turn, kinds = torch.empty(0), description.switch_length, description.rotations or ("",)

    def ask(positions: Tensor, kind: str) -> list[Tensor]:
        named = {"layer_type": kind} if kind else {}
        parts = model.model.rotary_emb(like, positions[None], **named)
        return [part[0, :POSITIONS_AT_ONCE, : part.shape[-1] // 2] for part in parts]

    def make(start: int) -> tuple[Tensor, Tensor]:
        positions = torch.arange(start, start + POSITIONS_AT_ONCE)
        if turn is None:
            tables = [ask(positions, kind) for kind in kinds]
        else:
            # The largest position decides which of the two are given.
            tables = [ask(positions.clamp(max=turn - 1), ""), ask(torch.cat([positions, torch.tensor([turn])]), "")]
        cosines, sines = zip(*tables, strict=True)
        return torch.stack(cosines).contiguous(), torch.stack(sines).contiguous()

    return make


def unsupported_config_reason(model: Any) -> str | None:
    """Why the configuration, or the modules, of ``model`` are not those of a family that is described."""
    try:
        description_of(model)
    except UserError as error:
        return str(error)
    return None if has_plain_projections(model) else "a projection of this model is not a plain torch.nn.Linear"


def _give_up(weights: Iterable[Tensor]) -> None:
    for weight in weights:
        weight.data = weight.data.new_empty(0)
