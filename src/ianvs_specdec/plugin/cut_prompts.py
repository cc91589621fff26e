"""Prompts that lost their oldest tokens to fit into a model's window: which answers to them serve, and one line that
tells of them.
"""

from __future__ import annotations

import logging
import threading

from ianvs_specdec.backends.base import LLM
from ianvs_specdec.common.types import Completion
from ianvs_specdec.records.journal import Entry

log = logging.getLogger(__name__)


class CutPrompts:
    """Those of one side in one test case. Thread-safe."""

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
