"""A back end that answers at once, with traces as a decoder leaves them: fills journals for measurements of replay."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from typing import Any

from ianvs_specdec.backends.base import NO_HINTS, OnChunk
from ianvs_specdec.backends.specdec import of_method
from ianvs_specdec.common.types import Completion, Hints, Message, Sampling, Step, Trace
from ianvs_specdec.records.identity import machine

TOKENS = 20


class InstantLLM(of_method("autoregressive")):  # type: ignore[misc]
    """Stands in for the back end ``autoregressive``, whose answers it forges: one token per chunk and step."""

    def load(self) -> None:
        """Nothing to load."""

    def generate(
        self,
        messages: list[Message],
        sampling: Sampling,
        on_chunk: OnChunk | None = None,
        hints: Hints = NO_HINTS,
    ) -> Completion:
        prompt = messages[-1]["content"]
        chance = random.Random(hashlib.sha256(prompt.encode()).digest())
        seconds, chunks = 0.0, []
        for _ in range(TOKENS):
            seconds += chance.uniform(0.005, 0.015)
            chunks.append((seconds, 1))
        letter = chance.choice("ABCD")
        text = f"The answer is {letter}: of the four options it alone fits what was asked."
        ids = [chance.randrange(32_000) for _ in range(TOKENS)]
        trace = Trace(chunks, [Step(0, 0, 1, 1)] * (TOKENS - 1), [(3, 0.0005)] if chance.random() < 0.05 else [])
        return Completion(text, ids, len(prompt) // 4, TOKENS, "stop", trace)

    def hardware(self) -> Mapping[str, Any]:
        return {**machine(), "device": "cpu", "threads": 1}

    def close(self) -> None:
        """Nothing to release."""
