"""Layers for multi-token prediction (MTP) in a checkpoint."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

NUMBERS = ("num_nextn_predict_layers", "num_mtp_layers")
"""Configuration keys of the number of MTP layers."""


def mtp_pattern(layers: int, mtp_layers: int) -> str:
    """A regular expression for tensors of MTP layers: numbered after the model's layers, or named ``mtp``."""
    numbers = "|".join(str(layers + number) for number in range(mtp_layers))
    return rf"(^|\.)(layers\.({numbers})\.|mtp\.)" if mtp_layers else r"(^|\.)mtp\."


def mtp_tensors(config: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """The tensors among ``names`` that belong to MTP layers. ``config``: config.json."""
    text = config.get("text_config") or config
    count = next((text[key] for key in NUMBERS if type(text.get(key)) is int), 0)
    pattern = re.compile(mtp_pattern(int(text.get("num_hidden_layers") or 0), count))
    return [name for name in names if pattern.search(name)]
