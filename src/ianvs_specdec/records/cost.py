"""Cost of answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PRICES = ("price_prompt", "price_cached", "price_completion")
"""Hyperparameters of a model: prices per million tokens. Without ``price_cached``, cached tokens cost as others."""


def cost(prices: Mapping[str, Any], prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0) -> float | None:
    """The price of answers; None without prices. ``prices``: values of ``PRICES``, or None each. ``prompt_tokens``
    include ``cached_tokens``."""
    prompt, cached, completion = (prices.get(name) for name in PRICES)
    if prompt is None and completion is None:
        return None
    prompt, completion = prompt or 0.0, completion or 0.0
    spent = (prompt_tokens - cached_tokens) * prompt + completion_tokens * completion
    spent += cached_tokens * (prompt if cached is None else cached)
    return float(spent / 1e6)
