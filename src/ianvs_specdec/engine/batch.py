"""What one step of the engine is for, and what has come of it so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ianvs_specdec.engine.contracts import Output
from ianvs_specdec.engine.request import Request
from ianvs_specdec.engine.scheduling import Finished, Share


@dataclass
class Batch:
    """The requests that take part: of those ``reading`` a piece of the prompt is computed, of those ``decoding`` a tree
    is verified.

    ``budgets`` are those of the decoding ones, of which those ``asked`` have drafts that were made here. ``rows``,
    ``prompt_rows`` and ``context`` are as in ``Finished``. ``outputs`` are the target's, none where it failed.
    """

    reading: list[Request]
    decoding: list[Request]
    prompt_rows: int = 0
    budgets: Sequence[int] = field(default=(), init=False)
    asked: Sequence[Request] = field(default=(), init=False)
    rows: int = field(default=0, init=False)
    context: int = field(default=0, init=False)
    outputs: Sequence[Output] = field(default=(), init=False)
    shares: Sequence[Share] = field(default=(), init=False)

    def finished(self, draft: float, verify: float, other: float, choosing: float) -> Finished:
        """What a length is told afterwards, with the seconds that it took."""
        return Finished(self.shares, self.rows, self.prompt_rows, self.context, draft, verify, other, choosing)
