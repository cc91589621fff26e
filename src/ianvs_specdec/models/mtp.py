"""Layers for multi-token prediction in a checkpoint, which the model's own output does not need."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

NUMBERS = ("num_nextn_predict_layers", "num_mtp_layers")
"""Keys of a configuration for how many there are."""


def mtp_pattern(layers: int, mtp_layers: int) -> str:
    """A regular expression for the tensors of MTP layers: numbered behind the model's own, or under ``mtp``."""
    numbers = "|".join(str(layers + number) for number in range(mtp_layers))
    return rf"(^|\.)(layers\.({numbers})\.|mtp\.)" if mtp_layers else r"(^|\.)mtp\."


def mtp_tensors(config: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """Those of the tensors ``names`` that belong to MTP layers, by a model's ``config`` (config.json)."""
    text = config.get("text_config") or config
    count = next((text[key] for key in NUMBERS if type(text.get(key)) is int), 0)
    pattern = re.compile(mtp_pattern(int(text.get("num_hidden_layers") or 0), count))
    return [name for name in names if pattern.search(name)]
