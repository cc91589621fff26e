"""Deciding on an answer's first tokens whether the rest of it is asked for."""

from __future__ import annotations

from collections.abc import Callable

from ianvs_specdec.common.types import Completion
from ianvs_specdec.records.journal import Entry


class EarlyExit:
    """Of one query: whether its answer stops after ``tokens`` tokens.

    ``decide`` is given an answer of that length, unless the whole answer is no longer. ``stopped`` is what it said.
    """

    def __init__(self, tokens: int, decide: Callable[[Completion], bool]) -> None:
        self.tokens, self._decide = tokens, decide
        self.begun: Entry | None = None
        """The first tokens, once they are known."""
        self.stopped = False

    def stops(self, begun: Entry) -> bool:
        """Whether the answer that is ``begun`` stops here."""
        self.begun = begun
        self.stopped = self._decide(begun.completion)
        return self.stopped

    def overrule(self) -> None:
        """The whole answer is wanted in any case."""
        self.stopped = False
        self._decide = lambda begun: False
