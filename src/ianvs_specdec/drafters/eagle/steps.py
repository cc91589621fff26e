"""The interface between drafting (``trees``) and the heads that compute it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from ianvs_specdec.drafters.eagle.layout import HeadConfig
from ianvs_specdec.drafters.hidden_states import Pairs
from ianvs_specdec.drafters.lockstep import Growth


@dataclass
class Level:
    """One drafted level: ``tokens [rows]`` at distance ``depth`` (from 1) from the root.

    ``above [rows]`` are the parents' rows in the previous level; None = its only row. ``mask [rows, rows drafted so
    far]`` is 0 where a row sees another, else -inf; not needed for a chain.
    """

    tokens: Tensor
    depth: int
    above: Tensor | None = None
    mask: Tensor | None = None


StepPart = tuple[Any, Pairs | Level]
"""A sequence of the head's, and what it has computed. The pairs drop what was drafted after the pairs before them."""

Growing = Growth[StepPart, Tensor]
"""A growing draft."""


class Head(Protocol):
    """A head fitted to a target, which computes steps of many sequences at once."""

    config: HeadConfig
    device: torch.device
    work: torch.dtype
    """Type of everything outside the products."""
    features: tuple[int, ...]
    """The target's hidden states that it reads (see ``Target.open``)."""
    vocabulary: int
    """Size of the target's vocabulary."""
    vocabulary_map: Tensor | None
    """The target's ids of the draft vocabulary; None = they are equal."""

    def open(self) -> Any:
        """A new, empty sequence, with a method ``close``."""

    def memory(self, positions: int) -> int:
        """Maximum bytes of keys and values of a sequence with ``positions`` pairs."""

    def keep(self, sequence: Any, pairs: Pairs) -> None:
        """Read pairs without computing logits."""

    def step(self, parts: Sequence[StepPart]) -> list[Tensor]:
        """The logits of the last pair, ``[1, draft vocabulary]``, or of the level's rows, for each of several different
        sequences."""
