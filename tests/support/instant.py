"""A back end that answers at once, for tests of what is around it."""

from __future__ import annotations

from typing import Any

from ianvs_specdec.backends.base import LLM
from ianvs_specdec.common.types import Completion, Trace


class InstantLLM(LLM):
    backend, local = "instant", True

    @classmethod
    def load(self) -> None: ...

    def identity(self, digests: Any) -> dict[str, Any]:
        return {}

    def generate(self, messages: Any, sampling: Any, on_chunk: Any = None, hints: Any = None) -> Completion:
        return Completion("yes", [1], 1, 1, "stop", Trace([(0.0, 1)]))
