"""An edge model of the plugin and rows for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ianvs_specdec.plugin.models import EdgeModel

Start = Callable[..., None]
TWO_TURNS = {
    "query": {"turns": ["ab ab ab", "and again"], "id": "q1", "group": "g", "scorer": "none"},
    "gold": {},
    "index": 0,
}


def row(text: str, gold: str = "B", index: int = 0) -> dict[str, Any]:
    return {"query": text, "gold": gold, "index": index}


def edge(model: Path, **hyperparameters: Any) -> EdgeModel:
    return EdgeModel(
        **{"model": str(model), "backend": "autoregressive", "dtype": "float32", "max_tokens": 12, **hyperparameters}
    )
