"""Draft length policies for tests, and steps of many requests as a policy sees them."""

from __future__ import annotations

from collections.abc import Callable

from ianvs_specdec.common.types import Step
from ianvs_specdec.engine import FinishedStep, Load, RequestStep, Stats


class ScriptedLength:
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


def running(count: int) -> Load:
    return Load([Stats(10) for _ in range(count)])


def stepped(length, load, accepted, seconds=1.0, prompt_rows=0):
    """The budgets that ``length`` gives; then it is told a step in which each request accepted ``accepted`` tokens, as
    far as they were drafted, and that took ``seconds``: a number, or what a number of draft tokens takes."""
    budgets = length.budgets(load)
    requests = []
    for stats, budget in zip(load.running, budgets, strict=True):
        right = min(accepted, budget)
        requests.append(RequestStep(stats, budget, 0, budget, Step(budget, right, right + 1, budget + 1)))
    taken = seconds(budgets[0]) if callable(seconds) else seconds
    length.learn(FinishedStep(requests, sum(budgets) + len(requests), prompt_rows, 100, 0.0, taken))
    return list(budgets)
