"""What lengths have in common that choose for the whole batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ianvs_specdec.engine.length import FinishedStep, Load

TOKENS = 5
"""Draft tokens while speculation is on, where a rule is not told: about what drafters of one guess per position get
accepted, and few enough to cost little."""


class Uniform:
    confidence = 0.0

    def budget(self, load: Load) -> int:
        """Draft tokens for each of the running requests."""
        raise NotImplementedError

    def budgets(self, load: Load) -> Sequence[int]:
        return [self.budget(load)] * len(load.running)

    def learn(self, finished: FinishedStep) -> None:
        """Nothing is learned."""


def whole(text: str, least: int = 0) -> int:
    """A whole number of at least ``least``. Raises ``ValueError`` for anything else."""
    if not (text.strip().isascii() and text.strip().isdigit() and int(text) >= least):
        raise ValueError(f"{text!r} is not a whole number of at least {least}")
    return int(text)
