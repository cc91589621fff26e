"""Warnings about the answers of one side, each given once: truncated prompts, drafts that cost more than they save."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any

from ianvs_specdec.backends.base import LLM
from ianvs_specdec.common.types import Completion
from ianvs_specdec.records.journal import Entry

log = logging.getLogger(__name__)

ENOUGH, NOTHING = 50, 0.1
"""After so many drafts it shows whether a head guesses: fewer accepted tokens a draft are next to nothing."""
FIRST, SLOW = 3, 2.0
"""Of so many answers the fastest tells whether a token takes so many times as long as in plain decoding."""


class TruncationWarning:
    """Of the truncated prompts of one side in one test case. Thread-safe."""

    def __init__(self, side: str) -> None:
        self._side = side
        self._told = False
        self._lock = threading.Lock()

    def serving(self, found: Entry | None, llm: LLM) -> Entry | None:
        """The answer of the journal if it serves: to a cut prompt, only where the settings permit to cut."""
        return None if found is not None and found.completion.truncated and llm.truncate_prompts is False else found

    def tell(self, completion: Completion) -> None:
        """One line on the screen for the first; the leaderboard has their number."""
        with self._lock:
            if not completion.truncated or self._told:
                return
            self._told = True
        reason = "a prompt did not fit into the model's window and lost its oldest"
        told = "the column Truncated Prompts counts such prompts"
        log.warning("%s model: %s %d tokens (truncate_prompts); %s", self._side, reason, completion.truncated, told)


class DraftWarnings:
    """Of one side's drafts in one test case. Thread-safe."""

    def __init__(self, side: str) -> None:
        self._side, self._lock = side, threading.Lock()
        self._drafts = self._accepted = 0
        self._times: list[float] = []

    def add(self, completion: Completion, llm: LLM, baseline: Mapping[str, Any] | None) -> None:
        """Count an answer; ``baseline``: see ``records.baseline.compare``."""
        trace, plain = completion.trace, baseline or {}
        drafts = [step for step in trace.steps if step.drafted]
        if not drafts:
            return
        guesser = next((name for name in ("head", "draft") if getattr(llm.options, name, None)), None)
        with self._lock:
            before, self._drafts = self._drafts, self._drafts + len(drafts)
            self._accepted += sum(step.accepted for step in drafts)
            if guesser and before < ENOUGH <= self._drafts and self._accepted < NOTHING * self._drafts:
                told = f"of {self._drafts} drafts {self._accepted} tokens were accepted"
                why = "it was probably trained for another model, or reads other layers than it was trained on"
                log.warning(
                    "%s model: almost no drafts of the %s are accepted (%s): %s", self._side, guesser, told, why
                )
            alone = trace.busy is None and plain.get("busy") is None
            if alone and plain.get("token") and trace.seconds_per_token and len(self._times) < FIRST:
                self._times.append(trace.seconds_per_token / plain["token"])
                if len(self._times) == FIRST and (least := min(self._times)) > SLOW:
                    told = f"in the first {FIRST} answers a token takes {least:.1f} times as long or more"
                    log.warning("%s model: %s is slower than plain decoding: %s", self._side, llm.backend, told)
