"""Warnings about the answers of one side, each given once: truncated prompts, drafts that cost more than they save."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any

from ianvs_specdec.backends.base import LLM
from ianvs_specdec.common.types import Completion

log = logging.getLogger(__name__)

DRAFTS, MIN_ACCEPTED = 50, 0.1
"""Number of drafts after which a head is judged, and the least mean of accepted tokens per draft."""
ANSWERS, MAX_SLOWDOWN = 3, 2.0
"""Number of answers after which the speed is judged, and the most time per token relative to plain decoding."""


class AnswerWarnings:
    """Warnings of one side in one test case. Thread-safe."""

    def __init__(self, side: str) -> None:
        self._side, self._lock = side, threading.Lock()
        self._truncated = False
        self._drafts = self._accepted = 0
        self._slowdowns: list[float] = []

    def add(self, completion: Completion, llm: LLM, baseline: Mapping[str, Any] | None) -> None:
        """Count an answer, and warn if due. ``baseline``: see ``records.baseline.compare``."""
        with self._lock:
            if completion.truncated and not self._truncated:
                self._truncated = True
                self._warn(
                    f"a prompt did not fit into the model's window and lost its oldest {completion.truncated} tokens "
                    "(truncate_prompts); the column Truncated Prompts counts such prompts"
                )
            if any(step.drafted for step in completion.trace.steps):
                self._add_drafts(completion, llm)
                self._add_time(completion, llm, baseline or {})

    def _add_drafts(self, completion: Completion, llm: LLM) -> None:
        drafts = [step for step in completion.trace.steps if step.drafted]
        before, self._drafts = self._drafts, self._drafts + len(drafts)
        self._accepted += sum(step.accepted for step in drafts)
        drafter = next((name for name in ("head", "draft") if getattr(llm.options, name, None)), None)
        if drafter and before < DRAFTS <= self._drafts and self._accepted < MIN_ACCEPTED * self._drafts:
            self._warn(
                f"almost no drafts of the {drafter} are accepted (of {self._drafts} drafts {self._accepted} tokens "
                "were accepted): it was probably trained for another model, or reads other layers than in training"
            )

    def _add_time(self, completion: Completion, llm: LLM, baseline: Mapping[str, Any]) -> None:
        trace = completion.trace
        alone = trace.busy is None and baseline.get("busy") is None
        if alone and baseline.get("token") and trace.seconds_per_token and len(self._slowdowns) < ANSWERS:
            self._slowdowns.append(trace.seconds_per_token / baseline["token"])
            if len(self._slowdowns) == ANSWERS and (least := min(self._slowdowns)) > MAX_SLOWDOWN:
                self._warn(
                    f"{llm.backend} is slower than plain decoding: in the first {ANSWERS} answers a token takes at "
                    f"least {least:.1f} times as long"
                )

    def _warn(self, message: str) -> None:
        log.warning("%s model: %s", self._side, message)
