"""Check the numbers of a config.json against the weights before a model is built.

transformers builds a model before it reads the weights, so that an absurd number of layers would take all memory.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.models.headers import Header

LAYERS = re.compile(r"(^|_)(n_layer|layers|blocks)$")
"""Numbers of modules, each with its own weights."""
SIZES = re.compile(r"(_size|_dim|_width|_rank|_heads|_experts|_labels|^n_embd|^n_inner|^n_head|^d_model|^d_ff|^d_kv)$")
"""Dimensions of matrices, or numbers of their parts."""
NO_SIZES = re.compile(r"window|chunk|patch|image|group|batch|block|beam|mscale")
"""Keys that match ``SIZES``, but are no dimensions of a matrix."""
POSITIONS = re.compile(r"^(max_position_embeddings|n_positions|n_ctx|max_seq_len)$")
EPSILONS = re.compile(r"(_eps|_epsilon)$")
ELSEWHERE = ("quantization_config", "compression_config", "task_specific_params", "id2label", "label2id")
"""Sections of a configuration that do not affect the modules."""

MAX_LAYERS = 10_000
"""Limit if the weights are unknown; the deepest models have about 100."""
MAX_SIZE = 1 << 24
"""Limit if the weights are unknown; the largest vocabularies have about 300,000 tokens."""
MAX_POSITIONS = 1 << 30
"""The longest windows have about 10 million positions."""
PACKED = 16
"""Maximum ratio of the elements of a matrix to those of its quantized tensor."""


def check_numbers(
    path: Path, config: Mapping[str, Any], tensors: Mapping[str, Header], *, key: str | None = None
) -> None:
    """Raise UserError with ``key`` for a number in the configuration ``path`` that is impossible for a model with
    ``tensors`` (empty if unknown)."""
    layers, size = MAX_LAYERS, MAX_SIZE
    if tensors:
        layers = len(tensors)
        size = max(PACKED * max(header.elements for header in tensors.values()), 1)
    for place, value in _numbers(config, ""):
        name = place.rpartition(".")[2].partition("[")[0]
        wanted = _wanted(name, value, layers, size)
        if wanted is not None:
            raise UserError(f"{path}: {place} is {_short(value)}, {wanted}", key=key)


def _wanted(name: str, value: Any, layers: int, size: int) -> str | None:
    """The error of a number, None if it is valid."""
    if isinstance(value, float) and not math.isfinite(value):
        return "expected a finite number"
    if NO_SIZES.search(name):
        return None
    if LAYERS.search(name) and (type(value) is not int or value > layers):
        return f"expected a whole number of at most {layers}, the number of tensors"
    if SIZES.search(name):
        if type(value) is not int or value < 0:
            return "expected a whole number of at least 0"
        return f"more than the weights allow ({size})" if value > size else None
    if POSITIONS.search(name) and not (type(value) is int and (1 < value <= MAX_POSITIONS or value == -1)):
        return f"expected a whole number from 2 to {MAX_POSITIONS}"
    if EPSILONS.search(name) and not 0 <= value < 1:
        return "expected a number from 0 to below 1"
    if name == "rope_theta" and not value > 0:
        return "expected a number above 0"
    return None


def _numbers(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Path and value of each number of a configuration."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            if name not in ELSEWHERE:
                yield from _numbers(item, f"{place}.{name}" if place else str(name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _numbers(item, f"{place}[{index}]")
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield place, value


def _short(value: float) -> str:
    text = repr(value)
    return text if len(text) <= 24 else f"{text[:8]}... ({len(text)} digits)"
