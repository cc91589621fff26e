"""The target that computes with torch, whether or not the native step was built."""

from __future__ import annotations

from typing import Any

from ianvs_specdec.decoding import Target, target_of
from ianvs_specdec.decoding.fused import fits


def torch_target(model: Any, **options: Any) -> Target:
    """The fast path where ``model`` fits, else the modules of transformers; ``options`` are those of ``target_of``."""
    return target_of(model, engine="torch" if fits(model) else "transformers", **options)
