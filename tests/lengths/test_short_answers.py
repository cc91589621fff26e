"""Goodput where answers are short, steps take less than a millisecond, and drafters read prompts: with small models."""

from __future__ import annotations

import random
import statistics
from dataclasses import dataclass, field

import pytest

from ianvs_specdec import lengths
from ianvs_specdec.common.types import Step
from ianvs_specdec.engine import Finished, Load, Share, Stats
from ianvs_specdec.lengths.fixed import Fixed

from .simulation import Request, interpolated, request

VERIFY = interpolated({1: 0.26, 2: 0.29, 4: 0.35, 8: 0.5, 12: 0.66, 20: 0.87, 28: 1.25, 44: 1.95, 80: 3.3, 2000: 82.0})
"""Milliseconds of a step by its rows, as the embedded cloud model was seen to take."""
IDLE, ASKED, EACH, LEVEL, NODE, BEHIND = 0.039, 0.03, 0.014, 0.028, 0.0015, 0.0026
"""Milliseconds of drafting by its EAGLE head."""
PAUSE, COLD = 1.6, (10, 4, 3, 2)
"""How many times as long a draft takes after 20 steps without one, and as long the first four steps and drafts take."""


@dataclass(eq=False)
class Answer:
    asked: Request
    stats: Stats = field(init=False)
    done: int = 1

    def __post_init__(self):
        self.stats = Stats(self.asked.prompt + 1, self.asked.task, 127)
        self.stats.unread_tokens = self.asked.prompt

    def step(self, budget):
        """What comes of its next step."""
        behind = self.stats.unread_tokens if budget else 0
        accepted = next((i for i, rank in enumerate(self.asked.ranks[self.done : self.done + budget]) if rank), budget)
        emitted = min(accepted + 1, self.asked.tokens - self.done)
        self.done += emitted
        self.stats.context_tokens += emitted
        self.stats.remaining -= emitted
        self.stats.unread_tokens = emitted if budget else self.stats.unread_tokens + emitted
        done = Step(budget, accepted, emitted, budget + 1)
        return Share(self.stats, budget, behind, budget, done, self.done >= self.asked.tokens)


def questions(seed, right):
    rng = random.Random(seed)
    return [
        request(
            f"t{i % 4}",
            rng.choice(right),
            rng.randint(30, 62),
            min(128, max(6, int(rng.lognormvariate(3.3, 0.5)))),
            10_000 * seed + i,
            True,
            1.0,
        )
        for i in range(192)
    ]


def milliseconds(length, asked, at_once, seed):
    """Of all steps; a length sees them with noise, late ones and cold ones, which it is not judged by."""
    rng, waiting, running, spent, drafts, pause = random.Random(seed), asked[::-1], [], 0.0, 0, 0

    def seen(taken, number):
        late = rng.choice((2, 3, 6)) if rng.random() < 0.03 else 1
        return taken * rng.lognormvariate(0, 0.1) * late * (COLD[number] if number < len(COLD) else 1) / 1000

    steps = 0
    while waiting or running:
        new = [Answer(waiting.pop()) for _ in range(min(at_once - len(running), len(waiting)))]
        prompts = sum(answer.asked.prompt for answer in new)
        load = Load([answer.stats for answer in running])
        context = sum(stats.context_tokens for stats in load.running)
        budgets = length.budgets(load) if running else []
        shares = [answer.step(budget) for answer, budget in zip(running, budgets, strict=True)]
        drafting = [share for share in shares if share.budget]
        draft = IDLE
        if drafting:
            nodes, behind = sum(share.budget for share in drafting), sum(share.unread_tokens for share in drafting)
            deepest = max(share.budget for share in drafting)
            draft += ASKED + EACH * len(drafting) + LEVEL * deepest + NODE * nodes + BEHIND * behind
            draft *= PAUSE if pause > 20 else 1
        rows = sum(share.step.verified for share in shares)
        verify = VERIFY(prompts + rows)
        spent += draft + verify
        draft_seen = seen(draft, drafts if drafting else len(COLD))
        length.learn(Finished(shares, rows, prompts, context, draft_seen, seen(verify, steps)))
        steps, drafts, pause = steps + 1, drafts + bool(drafting), 0 if drafting else pause + 1
        running = [answer for answer, share in zip(running, shares, strict=True) if not share.over] + new
    return spent


@pytest.mark.parametrize("at_once", [1, 4, pytest.param(16, marks=pytest.mark.slow)])
@pytest.mark.parametrize("right", [(0.93,), (0.6, 0.75, 0.85, 0.95, 0.98), (0.2, 0.4)], ids=["easy", "mixed", "hard"])
def test_short_answers_and_first_steps_that_mislead(right, at_once):
    ratios = []
    for seed in range(3):
        asked = questions(seed, right)
        best = min(milliseconds(Fixed(budget), asked, at_once, seed) for budget in (0, 2, 4, 6))
        ratios.append(best / milliseconds(lengths.create("goodput"), asked, at_once, seed))
    assert statistics.mean(ratios) >= 0.9
    assert min(ratios) >= 0.8
