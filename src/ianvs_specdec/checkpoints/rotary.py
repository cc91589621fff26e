"""What a configuration says of positions: how they are told, and how many there are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ROTATIONS = ("default", "linear", "llama3", "yarn")
"""Kinds of rotary embedding whose angles depend on the position alone."""
EXTENDING = ("linear", "dynamic", "yarn")
"""Kinds whose ``factor`` says how many times as many positions there are as the model was first trained for."""


def rotary(config: Any) -> dict[str, Any]:
    """The rotary embedding, its kind under ``rope_type``: of a mapping, or a configuration of transformers. Its words
    are ``rope_parameters``; before version 5 they were ``rope_scaling``."""
    given = _get(config, "rope_parameters") or _get(config, "rope_scaling") or {}
    rope = dict(given) if isinstance(given, Mapping) else {"rope_type": given}
    return {**rope, "rope_type": rope.get("rope_type") or rope.get("type") or "default"}


def window_of(config: Any) -> int | None:
    """The context window; None where the configuration states none.

    transformers computes with ``max_position_embeddings`` as it was before the scaling, as model cards tell to leave
    it; a number that has grown already counts as it is.
    """
    stated: int | None = _get(config, "max_position_embeddings")
    rope = rotary(config)
    if stated is None or rope["rope_type"] not in EXTENDING:
        return stated
    original = rope.get("original_max_position_embeddings") or stated
    return max(stated, int(original * (rope.get("factor") or 1)))


def _get(config: Any, key: str) -> Any:
    return config.get(key) if isinstance(config, Mapping) else getattr(config, key, None)
