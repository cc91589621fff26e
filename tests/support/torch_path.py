"""What computes: the target in torch, whether or not the native step was built, and the one that is picked."""

from __future__ import annotations

from typing import Any

from ianvs_specdec.decoding import Target, target_of
from ianvs_specdec.decoding.fused import fits
from ianvs_specdec.decoding.native import library

BEST = "native" if library.why_not() is None else "fused"
"""The kind of the target that our engine picks for a plain Llama on a CPU."""


def torch_target(model: Any, **options: Any) -> Target:
    """The fast path where ``model`` fits, else the modules of transformers; ``options`` are those of ``target_of``."""
    return target_of(model, engine="torch" if fits(model) else "transformers", **options)
