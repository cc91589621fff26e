"""Cloud-edge collaborative LLM inference as a benchmark plugin for KubeEdge Ianvs.

Importing this package imports nothing heavy: torch, transformers and the client libraries are imported by the back end
that needs them, at the moment it first has to answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ianvs_specdec.backends.offline import LLM
    from ianvs_specdec.common.types import Sampling as SamplingParams

__all__ = ["LLM", "SamplingParams"]

__version__ = "0.2.0"


def __getattr__(name: str) -> Any:
    if name == "LLM":
        from ianvs_specdec.backends.offline import LLM

        return LLM
    if name == "SamplingParams":
        from ianvs_specdec.common.types import Sampling

        return Sampling
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
