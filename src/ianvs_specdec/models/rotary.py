"""Rotary position embeddings of a configuration (a mapping, or an object of transformers)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ROTATIONS = ("default", "linear", "llama3", "yarn")
"""Types of rotary embeddings whose angles depend only on the position."""


def rotary(config: Any) -> dict[str, Any]:
    """Parameters of the rotary embedding, with ``rope_type``, from the keys of transformers 4 or 5."""
    given = _get(config, "rope_parameters") or _get(config, "rope_scaling") or {}
    rope = dict(given) if isinstance(given, Mapping) else {"rope_type": given}
    return {**rope, "rope_type": rope.get("rope_type") or rope.get("type") or "default"}


def window_of(config: Any) -> int | None:
    """The context window, times the ``factor`` of scaled positions; None if unlimited. ``max_position_embeddings`` may
    be the original or the extended window."""
    stated: int | None = _get(config, "max_position_embeddings")
    rope = rotary(config)
    if stated is None or rope["rope_type"] not in ("linear", "dynamic", "yarn"):
        return stated
    return max(stated, int((rope.get("original_max_position_embeddings") or stated) * (rope.get("factor") or 1)))


def switch_length(config: Any) -> int | None:
    """The length from which on all rotations change (LongRoPE); None if they never change."""
    given = _get(config, "rope_parameters")
    by_layer = [kind for kind in given.values() if isinstance(kind, Mapping)] if isinstance(given, Mapping) else []
    for rope in [rotary({"rope_parameters": kind}) for kind in by_layer] or [rotary(config)]:
        if rope["rope_type"] == "longrope":
            key = "original_max_position_embeddings"
            return int(rope.get(key) or _get(config, key) or _get(config, "max_position_embeddings"))
    return None


def _get(config: Any, key: str) -> Any:
    return config.get(key) if isinstance(config, Mapping) else getattr(config, key, None)
