"""The torch target, whether or not the native step was built, and the kind of the default target."""

from __future__ import annotations

from typing import Any

from ianvs_specdec.engine import Target
from ianvs_specdec.targets.fused import fits
from ianvs_specdec.targets.native import library
from ianvs_specdec.targets.registry import create_target

BEST = "native" if library.unavailable_reason() is None else "fused"
"""The kind of the target that our engine picks for a plain Llama on a CPU."""


def torch_target(model: Any, **options: Any) -> Target:
    """``FusedTarget`` if ``model`` fits, else ``HuggingFaceTarget``; ``options`` as of ``create_target``."""
    return create_target(model, engine="torch" if fits(model) else "transformers", **options)
