"""What computes: the target in torch, whether or not the native step was built, and the one that is picked."""

from __future__ import annotations

from typing import Any

from ianvs_specdec.engine import Target
from ianvs_specdec.targets.fused import fits
from ianvs_specdec.targets.native import library
from ianvs_specdec.targets.registry import target_of

BEST = "native" if library.why_not() is None else "fused"
"""The kind of the target that our engine picks for a plain Llama on a CPU."""


def torch_target(model: Any, **options: Any) -> Target:
    """The fast path where ``model`` fits, else the modules of transformers; ``options`` are those of ``target_of``."""
    return target_of(model, engine="torch" if fits(model) else "transformers", **options)
