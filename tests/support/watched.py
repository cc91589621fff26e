"""A target that is watched: what its steps compute, and which of its sequences are open."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ianvs_specdec.engine import Output, Target
from ianvs_specdec.engine.contracts import StepInput


class Watched:
    """``steps`` has the pieces of every step, ``open_now`` the sequences that are not closed, ``most`` how many of them
    there were at once. ``prompt_rows`` may be other than the target's own."""

    def __init__(self, target: Target, prompt_rows: int | None = None) -> None:
        self._target = target
        self.prompt_rows = prompt_rows or target.prompt_rows
        self.steps: list[list[StepInput]] = []
        self.open_now: list[Any] = []
        self.most = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def open(self, features: Sequence[int] = ()) -> Any:
        sequence: Any = self._target.open(features)
        close = sequence.close

        def closed() -> None:
            self.open_now = [other for other in self.open_now if other is not sequence]
            close()

        sequence.close = closed
        self.open_now.append(sequence)
        self.most = max(self.most, len(self.open_now))
        return sequence

    def step(self, parts: Sequence[tuple[Any, StepInput]]) -> list[Output]:
        self.steps.append([piece for _, piece in parts])
        return self._target.step(parts)
