"""A target driven by hand, one sequence after another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ianvs_specdec.engine import Output, Target, TokenTree
from ianvs_specdec.engine.contracts import SequenceState, prompt_chunks


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
