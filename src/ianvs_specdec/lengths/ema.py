"""SGLang's adaptive number of draft tokens: by how many were accepted lately, with hysteresis.

Facts from SGLang's pull requests 21599 (the rule), 23336 (the same beside its overlapped scheduler) and 24055 (a state
of its own for each range of batch sizes), and ``adaptive_spec_params.py`` for today's defaults. SGLang changes the
steps of a chain; here it is the budget. A moving average of the accepted tokens, averaged over the batch, is held
against thresholds: down where it is at most half a token below the next smaller candidate, up where it is more than
half a token below the present one. At 0 tokens nothing is learned, so the next candidate is tried at the next update.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ianvs_specdec.lengths.uniform import Uniform, whole

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ianvs_specdec.engine.length import FinishedStep, Load

ALPHA = 0.2
"""Weight of the latest batch in the moving average (``ema_alpha``)."""
WARM_UP, INTERVAL = 10, 5
"""Steps before the first update, and between two (``warmup_batches``, ``update_interval``)."""
UP_HYSTERESIS, DOWN_HYSTERESIS = 0.0, -0.25
"""Tokens by which these thresholds are moved (``up_hysteresis``, ``down_hysteresis``)."""


@dataclass
class _Slot:
    """The state for one range of batch sizes."""

    candidates: Sequence[int]
    down: float
    place: int = 0
    average: float = 0.0
    steps: int = 0

    def __post_init__(self) -> None:
        self.place = len(self.candidates) // 2
        # One less than is drafted: neither up nor down.
        self.average = self.tokens - 1.0

    @property
    def tokens(self) -> int:
        return self.candidates[self.place]

    def learn(self, accepted: float) -> None:
        """``accepted`` tokens on average over the batch."""
        if self.tokens:
            self.average += ALPHA * (accepted - self.average)
        self.steps += 1
        if self.steps > WARM_UP and (self.steps - WARM_UP) % INTERVAL == 0:
            self._update()

    def _update(self) -> None:
        before, last = self.place, len(self.candidates) - 1
        if self.tokens == 0:
            self.place = min(1, last)
            return
        while self.place > 0 and self.average <= self._lower(self.candidates[self.place - 1]):
            self.place -= 1
        if self.place == before:
            while self.place < last and self.average > self.tokens - 0.5 + UP_HYSTERESIS:
                self.place += 1

    def _lower(self, candidate: int) -> float:
        """The average from which on ``candidate``, the next smaller one, is enough."""
        # Fewer than none are never accepted, so that 0 tokens have the threshold of one.
        return max(candidate, 1) - 0.5 + self.down


DEFAULTS = {1: ((1, 3, 5, 7), DOWN_HYSTERESIS), 8: ((0, 1, 3), 0.0), 32: ((0, 1), 0.0), 64: ((0,), 0.0)}
"""Least number of running requests -> candidates and ``down_hysteresis``: SGLang's own."""


class Ema(Uniform):
    """``slots`` are as ``DEFAULTS``."""

    def __init__(self, slots: Mapping[int, tuple[Sequence[int], float]] = DEFAULTS) -> None:
        self._from = sorted(slots)
        self._slots = [_Slot(*slots[least]) for least in self._from]
        self._asked = self._slots[0]

    @classmethod
    def from_argument(cls, argument: str) -> Ema:
        if not argument:
            return cls()
        try:
            candidates = [whole(text) for text in argument.split(",")]
        except ValueError as error:
            usage = "write ema, or ema:A,B,C with the numbers of draft tokens to choose among, for example ema:1,3,7"
            raise ValueError(f"{error}; {usage}") from error
        return cls({1: (sorted(set(candidates)), DOWN_HYSTERESIS)})

    def budget(self, load: Load) -> int:
        self._asked = self._slots[bisect_right(self._from, len(load.running)) - 1]
        return self._asked.tokens

    def learn(self, finished: FinishedStep) -> None:
        if finished.requests:
            accepted = sum(request.step.accepted for request in finished.requests)
            self._asked.learn(accepted / len(finished.requests))
