"""Targets for tests: one that records its steps, and one driven one sequence at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ianvs_specdec.engine import Output, Target, TokenTree
from ianvs_specdec.engine.contracts import SequenceState, StepInput, prompt_chunks


class RecordingTarget:
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


class OneSequence:
    def __init__(self, target: Target) -> None:
        self.target = target
        self._state: SequenceState | None = None

    @property
    def state(self) -> SequenceState:
        assert self._state is not None, "there is no prompt yet"
        return self._state

    @property
    def position_limit(self) -> int | None:
        return self.state.position_limit

    def prefill(self, ids: Sequence[int], features: Sequence[int] = ()) -> Output:
        """A new sequence of these tokens: logits ``[1, vocabulary]`` after the last, hidden states of all."""
        if self._state is not None:
            self._state.close()
        self._state = self.target.open(features)
        parts = [self.target.step([(self._state, piece)])[0] for piece in prompt_chunks(ids, self.target.prompt_rows)]
        return Output(parts[-1].logits, tuple(map(torch.cat, zip(*(part.hidden for part in parts), strict=True))))

    def verify(self, tree: TokenTree) -> Output:
        (output,) = self.target.step([(self.state, tree)])
        return output

    def commit(self, path: Sequence[int]) -> None:
        self.state.commit(path)

    def snapshot(self) -> Any:
        return self.state.snapshot()

    def restore(self, snapshot: Any) -> None:
        self.state.restore(snapshot)
