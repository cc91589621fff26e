"""Some layers of a model in a row, for a machine that computes these only."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor

from ianvs_specdec.targets.native.model import ALL, LAST, NONE, Model, Parts, Rotations, State

TIMED, TIMED_ROWS = 9, 64
"""Steps whose median counts, and the rows before them."""


@dataclass
class Rows:
    """What is computed behind the positions of ``state``. ``parents`` are those of a tree (-1: it continues what
    stays); None: a piece of a prompt, which stays, and ends the prompt where it is ``last``."""

    state: State
    count: int
    parents: Sequence[int] | None = None
    last: bool = False

    @property
    def wanted(self) -> int:
        """Rows behind which a token is wanted."""
        return int(self.last) if self.parents is None else self.count


class LayerRange:
    """Layers of ``model`` from ``first`` on: they are given token ids where that is 0, else hidden states."""

    def __init__(self, model: Model, rotations: Rotations, first: int) -> None:
        self.model, self.first, self._rotations = model, first, rotations
        self.ends = model.unembed is not None

    @torch.inference_mode()
    def step(self, parts: Sequence[Rows], given: Sequence[int] | Tensor) -> Tensor:
        """``given``: token ids or hidden states ``[rows, hidden]`` of all parts. Returns the hidden states ``[rows,
        hidden]`` behind the last layer, or where that is the model's last the logits of the wanted rows."""
        step, positions = Parts(), 0
        for part in parts:
            positions = max(positions, len(part.state) + part.count)
            logits = (ALL if part.parents is not None else LAST if part.last else NONE) if self.ends else NONE
            step.add(
                part.state,
                part.count,
                part.parents,
                stay=part.parents is None,
                logits=logits,
                ends=not self.ends,
            )
        named = {"rows": given.contiguous()} if isinstance(given, Tensor) else {"tokens": given}
        features = () if self.ends else (len(self.model.layers),)
        logits_rows, hidden = self.model.step(step, self._rotations(positions), features=features, **named)
        return logits_rows if self.ends else hidden[0]

    def seconds(self) -> float:
        """How long a step of one row takes, measured."""
        state = self.model.open()
        times = []
        for count in (TIMED_ROWS, *[1] * TIMED):
            given = torch.zeros(count, self.model.hidden) if self.first else [0] * count
            began = time.perf_counter()
            self.step([Rows(state, count)], given)
            times.append(time.perf_counter() - began)
        state.close()
        return median(times[1:])
