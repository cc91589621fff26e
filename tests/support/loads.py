"""Steps of many requests, as a length sees them."""

from __future__ import annotations

from ianvs_specdec.common.types import Step
from ianvs_specdec.engine import FinishedStep, Load, RequestStep, Stats


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
