"""EAGLE heads as they are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
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
    frequent_ids,
    head_config,
    is_eagle3,
    layer_of,
)
from ianvs_specdec.drafters.tensors import find, read_tensors
from ianvs_specdec.engine import Target
from ianvs_specdec.models.validation import ModelSizes

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
        return layer_of(self.tensors)

    @classmethod
    def read(cls, folder: Path) -> EagleCheckpoint:
        """Raises ``UserError`` naming the file and the key or tensor that is missing, unknown or of the wrong shape."""
        config = head_config(folder)
        path = find(folder, FILES, WHAT)
        found = read_tensors(path, WHAT, whole=MAPPINGS)
        check_tensors(path, config, {name: tuple(tensor.shape) for name, tensor in found.items()})
        tensors = {name: tensor for name, tensor in found.items() if not name.endswith(IGNORED)}
        eagle3 = is_eagle3(tensors)
        if "d2t" in tensors:
            _check_mapping(path, tensors["d2t"], config.vocabulary)
        if (ids := frequent_ids(folder, config, eagle3=eagle3)) is not None:
            tensors["d2t"] = torch.tensor(ids) - torch.arange(len(ids))
            config = replace(config, draft_vocabulary=len(ids))
        return cls(folder, config, tensors, eagle3)

    def joined(self, modules: Sequence[str], part: str) -> Tensor | None:
        """One below the other, the weights or biases of the layer's ``modules``; None where there are none."""
        names = [f"{self.layer}{module}.{part}" for module in modules]
        found = [self.tensors[name] for name in names if name in self.tensors]
        return torch.cat(found) if found else None

    @property
    def feature_norm(self) -> tuple[Tensor, int] | None:
        """The weights of the norm of what ``fc`` joins, and how many numbers are normed together; None = no norm."""
        if "norm_before_fc" in self.config.flags:
            return self.tensors["input_norm.weight"], len(self.tensors["input_norm.weight"])
        if "fc_norm" not in self.config.flags:
            return None
        width = self.config.target_hidden
        norms = [self.tensors[f"fc_norm.{index}.weight"] for index in range(len(self.config.layer_ids) or 3)]
        return torch.cat(norms), width

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


def rotations(config: HeadConfig, start: int, end: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotary embedding, of the positions from ``start`` to ``end``, each ``[positions, width /
    2]``."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    rotary = LlamaRotaryEmbedding(LlamaConfig(**config.llama))
    half = config.width // 2
    cosine, sine = (part[0, :, :half].to(dtype) for part in rotary(torch.empty(0), torch.arange(start, end)[None]))
    return cosine, sine
