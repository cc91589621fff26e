"""EAGLE heads as they are read, and the matrices that a head multiplies with, folded out of their tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.drafters.eagle.layout import (
    FILES,
    IGNORED,
    WHAT,
    HeadConfig,
    check_fit,
    check_tensors,
    head_config,
    is_eagle3,
    layer_of,
)
from ianvs_specdec.drafters.tensors import find, read_tensors
from ianvs_specdec.engine import Target
from ianvs_specdec.models.layout import ModelSizes
from ianvs_specdec.targets.fit import paired

FOLDED_TABLE = 1 << 25
"""Numbers in a table of what every token brings into the layer, or in a copy of the target's output matrix: a head with
larger ones computes them anew."""

_PRECISE = 1 << 25

MAPPINGS = ("d2t", "t2d")
"""Tensors that lead from one vocabulary to another."""


@dataclass(frozen=True)
class EagleCheckpoint:
    """A head as read and checked: every tensor has the name and shape that its format asks for."""

    folder: Path
    config: HeadConfig
    tensors: dict[str, Tensor]
    eagle3: bool

    @property
    def layer(self) -> str:
        """What the names of the layer's tensors begin with."""
        return layer_of(self.eagle3)

    @classmethod
    def read(cls, folder: Path) -> EagleCheckpoint:
        """Raises ``UserError`` naming the file and the key or tensor that is missing, unknown or of the wrong shape."""
        config = head_config(folder)
        path = find(folder, FILES, WHAT)
        found = read_tensors(path, WHAT, whole=MAPPINGS)
        check_tensors(path, config, {name: tuple(tensor.shape) for name, tensor in found.items()})
        tensors = {name: tensor for name, tensor in found.items() if not name.endswith(IGNORED)}
        if "d2t" in tensors:
            _check_mapping(path, tensors["d2t"], config.vocabulary)
        return cls(folder, config, tensors, is_eagle3(tensors))

    def fitted(self, target: Target) -> tuple[int, ...]:
        """The hidden states of ``target`` that the head reads: see ``check_fit``."""
        vocabulary, hidden = target.embedding.shape
        sizes = ModelSizes(vocabulary, hidden, target.layers)
        embedded = "embed_tokens.weight" in self.tensors
        return check_fit(self.folder, self.config, sizes, eagle3=self.eagle3, embedded=embedded)


def _check_mapping(path: Path, offsets: Tensor, vocabulary: int) -> None:
    ids = torch.arange(len(offsets)) + offsets
    if offsets.is_floating_point() or not (int(ids.min()) >= 0 and int(ids.max()) < vocabulary):
        raise UserError(
            f"{path}: tensor d2t must hold whole numbers that lead from draft token ids to ids below {vocabulary}",
            key="head",
        )


class FoldedWeights:
    """The tensors of a checkpoint in the precision in which they are folded, norm weights and scales applied."""

    def __init__(self, checkpoint: EagleCheckpoint, device: torch.device, root: float) -> None:
        largest = max(tensor.numel() for tensor in checkpoint.tensors.values())
        self._precision = torch.float64 if largest <= _PRECISE and device.type == "cpu" else torch.float32
        self._checkpoint, self._device, self._root = checkpoint, device, root

    def tensor(self, name: str) -> Tensor:
        tensor = self._checkpoint.tensors[name].to(self._device)
        return tensor.to(self._precision) if tensor.is_floating_point() else tensor

    def get(self, name: str) -> Tensor | None:
        return self.tensor(name) if name in self._checkpoint.tensors else None

    def __getitem__(self, module: str) -> Tensor:
        return self.tensor(f"{self._checkpoint.layer}{module}.weight")

    def normed(self, norm: str, *modules: str, prefix: str | None = None) -> Tensor:
        """One matrix of all ``modules``, for inputs as ``EagleHead._normed`` returns them."""
        prefix = self._checkpoint.layer if prefix is None else prefix
        stacked = torch.cat([self.tensor(f"{prefix}{module}.weight") for module in modules])
        return stacked * (self.tensor(f"{prefix}{norm}.weight") * self._root)

    def entries(self) -> tuple[Tensor, Tensor, Tensor]:
        """Matrices from token embedding and from hidden state to the layer's entry, and the entry's bias."""
        projection, bias = self._projection()
        hidden = self._checkpoint.config.hidden
        if self._checkpoint.eagle3:
            of_token = self["input_layernorm"] * self._root
            of_hidden = self["hidden_norm"] * self._root
            return projection[:, :hidden] * of_token, projection[:, hidden:] * of_hidden, bias
        joint = self.tensor("fc.weight")
        joint_bias = self.get("fc.bias")
        joint_bias = joint.new_zeros(hidden) if joint_bias is None else joint_bias
        entry = torch.cat([joint, projection @ joint])
        bias = torch.cat([joint_bias, projection @ joint_bias + bias])
        return entry[:, :hidden].contiguous(), entry[:, hidden:].contiguous(), bias

    def _projection(self) -> tuple[Tensor, Tensor]:
        """Queries, keys and values as one matrix and its bias: the first two in pairs, queries scaled."""
        width = self._checkpoint.config.width
        parts, biases = [], []
        for name in ("q", "k", "v"):
            weight = self[f"self_attn.{name}_proj"]
            stored = self.get(f"{self._checkpoint.layer}self_attn.{name}_proj.bias")
            bias = weight.new_zeros(len(weight)) if stored is None else stored
            if name == "q":
                weight, bias = weight / math.sqrt(width), bias / math.sqrt(width)
            parts.append(weight if name == "v" else paired(weight, width))
            biases.append(bias if name == "v" else paired(bias, width))
        return torch.cat(parts), torch.cat(biases)


def rotations(config: HeadConfig, start: int, end: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotary embedding, of the positions from ``start`` to ``end``, each ``[positions, width /
    2]``."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    rotary = LlamaRotaryEmbedding(LlamaConfig(**config.llama))
    half = config.width // 2
    cosine, sine = (part[0, :, :half].to(dtype) for part in rotary(torch.empty(0), torch.arange(start, end)[None]))
    return cosine, sine
