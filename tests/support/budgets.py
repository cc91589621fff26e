"""A speculation length that a test decides."""

from __future__ import annotations

from collections.abc import Callable

from ianvs_specdec.engine import FinishedStep, Load, Stats


class Budgets:
    """Asks ``choose`` before every step of a request: its ``Stats`` and how many steps it has finished."""

    def __init__(self, choose: Callable[[Stats, int], int], confidence: float = 0.0) -> None:
        self._choose, self.confidence = choose, confidence
        self.finished: list[FinishedStep] = []

    def budgets(self, load: Load) -> list[int]:
        return [self._choose(stats, stats.length_state or 0) for stats in load.running]

    def learn(self, finished: FinishedStep) -> None:
        self.finished.append(finished)
        for request in finished.requests:
            request.stats.length_state = (request.stats.length_state or 0) + 1
