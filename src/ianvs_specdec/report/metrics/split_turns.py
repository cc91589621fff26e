"""What the table of turns holds of split decoding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

TURN = (
    "rounds",
    "in_flight",
    "waits",
    "drafting",
    "hidden",
    "ahead",
    "hits",
    "breaks",
    "lost",
    "prefill",
    "work",
    "base_token",
)
"""Columns of turns: those of a split trace, and the seconds that the autoregressive stream takes for a token after its
first piece."""

_NOTHING = dict.fromkeys(TURN, np.nan)


def row_of(trace: Mapping[str, Any], baseline: Mapping[str, Any]) -> dict[str, float]:
    """The entries of one turn, NaN where they are not known."""
    told = trace.get("split")
    if told is None:
        return _NOTHING
    found = {**dict.fromkeys(TURN), **{name: told[name] for name in TURN if name in told}}
    found["base_token"] = baseline.get("token")
    return {name: np.nan if value is None else float(value) for name, value in found.items()}
