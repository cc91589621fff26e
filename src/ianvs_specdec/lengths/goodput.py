"""As many draft tokens as pay: the budgets with which all requests together get the most tokens per second.

That objective is the goodput of SmartSpec (Liu et al. 2024, arXiv 2406.14066, later TurboSpec): expected tokens of a
step over its time. There a profile is measured beforehand. Here both factors are learned from the run: times in
``step_costs``, acceptance in ``acceptance_model``.

**Plans.** A plan has a budget for each difficulty of a request. Its candidates are pairs of a price and a cap: a
request drafts what maximizes its accepted tokens less the price of each drafted one, up to the cap. At the price 0 all
draft the same. The higher it is, the more of a step's rows go to easy requests. If requests of difficulty ``d`` get
``t_d`` tokens from each step, and a share ``q_d`` of all tokens, then a step of ``N`` requests has::

    N / sum(q_d / t_d)    tokens, and its requests are of difficulty d in proportion to q_d / t_d

since easy requests with long drafts leave soon and hard ones take their places. The plan for the next steps is the
candidate with the most tokens per second.

**Exploration.** What was never tried is uncertain. So now and then the candidate is tried that would be the fastest if
the doubts about its time were in its favour (an upper confidence bound, as for bandits). And requests that do not draft
are asked for one token, as they may have become easier. Both are paid from a small share of the time, so that little is
lost where no draft pays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ianvs_specdec.lengths.acceptance_model import MISS_RATES, AcceptanceModel, Floats
from ianvs_specdec.lengths.step_costs import StepCosts, Work

if TYPE_CHECKING:
    from ianvs_specdec.engine.length import FinishedStep, Load, RequestStep

PRICES = np.array([0.0, 0.1, 0.25, 0.4, 0.6, 0.8])
"""Accepted tokens that a drafted one must bring: what a row costs over what a token is worth, from nothing to nearly
all."""
WARM_UP, COLD = 6 * (0,) + 8 * (2,), frozenset({1, 2, 7, 8, 9, 10})
"""Budgets of the first steps: times are to be known first, then whether drafts are of any use. Of these, the steps in
which a process is still slow."""
PLAN_STEPS, PLAN_SECONDS = 8, 0.05
"""How long a plan holds, the longer of both: making one takes half a millisecond, one percent of that."""
TABLE_STEPS = 32
"""For how long the table of what each budget brings holds, which takes as long as a plan."""
TRIAL_STEPS, TRIAL_EVERY = 2, 32
"""Steps of a trial, as a single one may be late; and from one to the next, or two plans, as it takes two more."""
EXPLORING = 0.008
"""Share of the time for trials, and the same for asking again. A draft that adds half a step: about every 60 steps."""
DOUBT, APART = 1.5, 1.05
"""Standard deviations by which a trial may be faster than thought, as one in 15 is. How many times as fast a plan must
be that tells requests apart: the best of many seems better than it is."""
LEARNING, STEP_LESSON, SHARE_LESSON = 0.005, 80e-6, 4e-6
"""Share of the time for learning times, and the same for acceptance; the seconds that a step and a draft take."""


class Goodput:
    confidence = 0.0

    def __init__(self) -> None:
        self._acceptance, self._costs = AcceptanceModel(), StepCosts()
        self._now = self._until_plan = self._next_trial = self._next_table = self._planned = self._joined = 0
        self._budgets, self._pace = [0] * len(MISS_RATES), np.ones(len(MISS_RATES))
        """The plan, by difficulty: budgets, and tokens that each step brings a request."""
        self._trial = self._asking = False
        self._for_trials = self._for_asking = self._for_lessons = self._price_of_asking = 0.0
        """Seconds saved up, and seconds that it takes to ask all that do not draft."""
        self._prompt, self._output, self._piece = 0.0, 1.0, 0
        """Average tokens of prompts and outputs, and the most prompt rows of a step that left some over."""

    @classmethod
    def from_argument(cls, argument: str) -> Goodput:
        if argument:
            raise ValueError("goodput takes no argument: it learns everything from the run")
        return cls()

    def budgets(self, load: Load) -> Sequence[int]:
        self._now += 1
        for stats in load.running:
            if stats.length_state is None:
                stats.length_state = state = self._acceptance.begin(stats.task, stats.context_tokens, self._now)
                state.budget = self._budgets[state.difficulty]
                self._joined += 1
        if self._now <= len(WARM_UP):
            return [min(WARM_UP[self._now - 1], stats.remaining - 1) for stats in load.running]
        if load.unread:
            self._piece = max(self._piece, load.prompt_rows)
        changes = max(self._joined, abs(len(load.running) - self._planned))
        if self._until_plan <= 0 or (4 * changes > self._planned and not self._trial):
            self._plan(load)
        self._until_plan -= 1
        self._asking = not self._trial and 0 < self._price_of_asking <= self._for_asking
        if self._asking:
            self._for_asking -= self._price_of_asking
        return [min(max(stats.length_state.budget, int(self._asking)), stats.remaining - 1) for stats in load.running]

    def _plan(self, load: Load) -> None:
        if self._now >= self._next_table:
            self._next_table = self._now + TABLE_STEPS
            self._tabulate()
        states = [stats.length_state for stats in load.running]
        difficulties = [state.difficulty for state in states]
        tokens, work = self._candidates(np.bincount(difficulties, minlength=len(MISS_RATES)) * self._pace, load)
        seconds = self._costs.seconds(work)
        rate = tokens / seconds
        best, same = int(rate.argmax()), int(rate[: len(self._acceptance.budgets)].argmax())
        best = best if rate[best] > APART * rate[same] else same
        self._planned, self._joined = len(states), 0
        self._pace = 1 / self._steps[:, best]
        hold = self._until_plan = int(max(PLAN_STEPS, PLAN_SECONDS / seconds[best]))
        if self._costs.changed:
            self._costs.changed, self._next_trial = False, 0
        tried = self._trial_of(tokens, seconds, work, best) if self._now >= self._next_trial else best
        self._trial = tried != best
        if self._trial:
            self._until_plan, self._next_trial = TRIAL_STEPS, self._now + max(TRIAL_EVERY, 2 * hold)
        self._budgets = self._choices[:, tried].tolist()
        for state, difficulty in zip(states, difficulties, strict=True):
            state.budget = self._budgets[difficulty]
        # The first two candidates have no drafts, and one token for all.
        idle = sum(state.budget == 0 for state in states) / len(states)
        self._price_of_asking = idle * max(float(seconds[1] - seconds[0]), 1e-9)

    def _trial_of(self, tokens: Floats, seconds: Floats, work: Work, best: int) -> int:
        """The candidate to be tried, ``best`` where none is worth it."""
        lost = TRIAL_STEPS * np.maximum(seconds - tokens * seconds[best] / tokens[best], 0.0)
        # Half of the time is as fast as may be hoped for.
        hoped = np.maximum(seconds - DOUBT * self._costs.doubt(work, best), seconds / 2)
        rate = np.where(lost <= self._for_trials, tokens / hoped, 0.0)
        tried = int(rate.argmax())
        if rate[tried] <= tokens[best] / seconds[best]:
            return best
        self._for_trials -= float(lost[tried])
        return tried

    def _tabulate(self) -> None:
        """For each difficulty and candidate: the budget, and steps, nodes and drafts for each token."""
        model = self._acceptance
        model.tabulate()
        count = len(model.budgets)
        value = model.tokens[:, None] - PRICES[:, None] * model.nodes
        longer = value >= np.maximum.accumulate(value, axis=2)
        longer[:, 0] = True
        choice = np.maximum.accumulate(np.where(longer, np.arange(count), 0), axis=2).reshape(len(MISS_RATES), -1)
        self._choices, self._depth = model.budgets[choice], np.tile(model.depth, len(PRICES))
        self._steps = 1 / (1 + model.found * np.take_along_axis(model.tokens, choice, axis=1))
        self._nodes, self._drafts = self._steps * model.found * model.nodes[choice], self._steps * (choice > 0)

    def _candidates(self, mix: Floats, load: Load) -> tuple[Floats, Work]:
        """The tokens of each candidate's steps and what these do, for a ``mix`` of tokens by difficulty."""
        running = len(load.running)
        # Where prompts are left over, those that read will run as well.
        number = running + load.reading if load.unread else running
        steps = mix @ self._steps / number
        tokens, nodes, drafting = mix.sum() / steps, mix @ self._nodes / steps, mix @ self._drafts / steps
        # Where prompts fill every step, who is done sooner only makes room for more of them.
        prompts = np.maximum(tokens * self._prompt / self._output, 1.0)
        part = np.minimum(1.0, self._piece / prompts) if self._piece else np.ones(len(tokens))
        tokens, nodes, drafting, requests = part * tokens, part * nodes, part * drafting, part * number
        depth = self._depth * np.minimum(drafting * self._acceptance.found, 1.0)
        context, behind = requests * load.context_tokens / running, drafting * tokens / requests
        return tokens, Work(requests, requests + nodes, context, 0, drafting, nodes, depth, behind)

    def learn(self, finished: FinishedStep) -> None:
        seconds, requests = finished.seconds, finished.requests
        self._for_trials = min(self._for_trials + EXPLORING * seconds, 8 * seconds)
        self._for_asking = min(self._for_asking, self._price_of_asking) + EXPLORING * seconds
        self._for_lessons = min(self._for_lessons + LEARNING * seconds, STEP_LESSON)
        if not requests:
            return
        stride = 1 if self._asking else max(round(len(requests) * SHARE_LESSON / (LEARNING * seconds)), 1)
        for request in requests[self._now % stride :: stride]:
            self._learn_acceptance(request)
        if self._now not in COLD if self._now <= len(WARM_UP) else self._trial or self._for_lessons > 0:
            self._for_lessons -= STEP_LESSON
            self._costs.learn(finished)

    def _learn_acceptance(self, request: RequestStep) -> None:
        state = request.stats.length_state
        if request.over:
            # What comes behind the end says nothing of the draft.
            self._prompt += 0.02 * (state.start - self._prompt)
            self._output += 0.02 * (request.stats.context_tokens - state.start - self._output)
        elif request.budget:
            self._acceptance.learn(state, request, self._now)
            if not self._trial:
                state.budget = self._budgets[state.difficulty]
